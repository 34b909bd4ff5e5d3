"""`comm_overlap_config`: what goes on while ranks exchange; what it leaves open follows from the layout (Megatron-Bridge).

Most of its fields have a twin in the model, the optimizer or the gradients of replicas. What the user says of the twin goes
before what only a recipe's policy says.
"""

from primus.backends.megatron_bridge.container import CommOverlapConfig
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value
from primus.core.keys import show_value

__all__ = ["overlap_values"]

_PART = "comm_overlap"
_BUCKET = 128 * 2**20
_TWINS = {
    "overlap_grad_reduce": "ddp",
    "overlap_param_gather": "ddp",
    "align_param_gather": "ddp",
    "bucket_size": "ddp",
    "overlap_param_gather_with_optimizer_step": "optimizer",
}
"""Sub-config of a field's twin; that of any other is the model's."""
_KEYS = {"bucket_size": "ddp_bucket_size"}
"""Flat keys of another name."""
_GIVEN = (
    "tp_comm_overlap_cfg",
    "overlap_param_gather_with_optimizer_step",
    "defer_embedding_wgrad_compute",
    "wgrad_deferral_limit",
    "overlap_moe_expert_parallel_comm",
    "delay_wgrad_compute",
)
"""Fields that nothing is chosen for."""


def overlap_values(raw: Raw, *, data_ranks: int, problems: list[str]) -> dict[str, Value]:
    """Return the flat values of a policy; none without one. A twin of which the user says something else is a problem."""
    policy = raw.config.comm_overlap
    if policy is None:
        return {}
    values = {**_automatic(raw, policy, data_ranks=data_ranks), **{name: getattr(policy, name) for name in _GIVEN}}
    if raw.is_chosen(f"{_PART}.tp_comm_bootstrap_backend"):
        values["tp_comm_bootstrap_backend"] = policy.tp_comm_bootstrap_backend
    found = {}
    for name, value in values.items():
        twin = f"{_TWINS.get(name, 'model')}.{name}"
        if raw.is_chosen(twin):
            problems += _contrary(raw, name, twin)
        elif value is not None:
            # What nobody chose has no place of the user's, so that a run does not tell where it is idle.
            found[_KEYS.get(name, name)] = raw.value(
                value, *([] if getattr(policy, name) is None else [f"{_PART}.{name}", _PART])
            )
    return found


def _automatic(raw: Raw, policy: CommOverlapConfig, *, data_ranks: int) -> dict[str, object]:
    """Return the fields that follow from the layout where the policy leaves them open."""
    model = raw.config.model
    staged, interleaved = model.pipeline_model_parallel_size > 1, (model.virtual_pipeline_model_parallel_size or 1) > 1
    divided = data_ranks > 1 and (raw.config.ddp.use_distributed_optimizer or raw.config.optimizer.use_distributed_optimizer)
    open_fields = {
        "overlap_p2p_comm": staged and interleaved,
        "overlap_grad_reduce": divided,
        "overlap_param_gather": divided,
        "align_param_gather": divided and staged and interleaved,
        "bucket_size": _BUCKET if divided else None,
    }
    products = policy.tp_comm_overlap and model.tensor_model_parallel_size > 1 and model.sequence_parallel
    given = {name: choice if getattr(policy, name) is None else getattr(policy, name) for name, choice in open_fields.items()}
    return {"tp_comm_overlap": products, **given}


def _contrary(raw: Raw, name: str, twin: str) -> list[str]:
    path = f"{_PART}.{name}"
    if not raw.is_chosen(path) or raw.at(path) == raw.at(twin):
        return []
    return [f"{raw.where(path)} and {raw.where(twin)} are two names of one thing, and differ: keep {show_value(name)} once."]
