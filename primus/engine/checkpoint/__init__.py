"""Saving and loading runs. This door imports nothing: `folder` and `start` serve checks before anything starts, without
torch.

- `folder.py`: which checkpoints are whole, publishing, retention
- `start.py`: what a run starts from
- `state.py`: the counters of a run
- `rng.py`: random states
- `checksum.py`: damage is found before it is loaded
- `dist_format.py`, `torch_format.py`: the two formats
- `save.py`, `load.py`: all of it together
"""
