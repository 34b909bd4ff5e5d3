"""Order of forwards and backwards within a step. This door imports nothing: `schedules` starts without torch.

- `schedules/`: tables, without torch
- `pipeline.py`: this rank's part of every step
- `runtime.py`: runs a table
- `links.py`: messages to and from other stages
- `recorder.py`, `adaptive.py`: times of operations, and the table made anew from them
- `relay.py`: a sum over stages for which nobody stops
- `offload.py`, `host_link.py`: activations in host memory, and the copies there and back
- `storage.py`: the memory behind tensors
"""
