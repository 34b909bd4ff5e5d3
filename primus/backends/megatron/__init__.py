"""The Megatron front door: flat Megatron keys to the container. "Backend" means a configuration language here, not kernels.

- `argument_builder.py`: `MegatronArgBuilder`, the four passes from an experiment's module to a container
- `keys/`: one row a key: type, choices, status, target, meaning
- `params.py`: the flat values as derivations and rules read them
- `patches/args/`: derivations and cross-key rules, one subject a file
- `blends.py`: the grammar of data blends and splits
- `overlap_cfg.py`: the grammar of `tp_comm_overlap_cfg`
- `announcements.py`: lines about values that change what a user probably means
- `idle.py`: keys that cannot act, because others are off
- `reasons.py`: what can keep a key from acting
- `origins.py`: which key named a file or folder
- `to_container.py`: where each container field comes from

Nothing is re-exported: `primus config explain` needs the keys alone, at once.
"""
