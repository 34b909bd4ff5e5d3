"""The machine tower: trains what a container file says, and sees no preset, flat key or environment option.

- `worker.py`, `elastic.py`, `generate.py`: entry points of processes
- `rehearsal/`: one rank of any run, built and counted without its peers
- `train/`: training itself
- `pipeline/`, `optim/`, `data/`, `checkpoint/`, `inference/`, `observe/`: capabilities that do not know one another
- `model/`: the decoder
- `precision/`: number formats of a run
- `kernels/`: operations, one a file
- `parallel/`: ranks, groups and what moves between them
- `config/`: the container
- `trace/`: times of named stretches of code
- `cause.py`, `leave.py`, `lifeline.py`, `signals.py`, `host_memory.py`: what a process owes its launcher and its machine
- `device_memory.py`: its accelerator, and what it has of memory
"""
