"""One rank of a large run, built and run for a step without data, peers or memory. This door imports nothing.

`python -m primus.engine.rehearsal CONFIG` takes RANK and WORLD_SIZE from the environment, as a worker does, and prints a
record. Everything is the code of a run: layout, mesh, model, buffers, optimizer, schedule, step. Only the tensors lie on
torch's meta device, which knows shapes and has no values, and the groups answer at once.

- `record.py`: what is found out, and its JSON; starts without torch
- `rehearse.py`: builds, runs and measures
- `stand_in.py`: what the meta device and absent peers cannot give
- `traffic.py`: collectives and messages, counted where torch hands them to a group
- `live.py`: memory in use, and the most of it
- `mode.py`: what sees operators pass
"""
