"""Saving and loading runs. This door imports nothing: `folder` and `start` serve checks before anything starts, without
torch.

- `folder.py`: which checkpoints are complete, how one is published, which are kept
- `start.py`: what a run starts from
- `state.py`: the counters of a run
- `rng.py`: random states
- `agree.py`: a step that fails on one rank fails on all
- `files.py`, `archive.py`: durable files, the checksums that find damage, and tensors in them without copies
- `dist_plan.py`, `dist_format.py`: `ckpt_format: torch_dist`, which loads into any layout
- `torch_format.py`: `ckpt_format: torch`, one file a model-parallel rank
- `local_folder.py`, `local.py`, `local_source.py`, `replicas.py`: each rank's part on its node's disk, and copies elsewhere
- `compare.py`: what the checkpoint holds against what the run asks for
- `adapters.py`, `fingerprint.py`: whether adapters belong to the base that a run has
- `save.py`, `load.py`: all of it together
- `merged.py`: adapters and their base as one model
- `progress.py`: `progress.txt`
- `hf/`: weights to and from Hugging Face folders
"""
