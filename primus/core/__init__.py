"""The paper tower below the front doors; nothing here imports torch.

- `experiment/`: from an experiment file to flat parameters that remember where they were set
- `keys/`: the key row and its readers
- `plan.py`: who holds what, and how much memory it takes, as `--dry-run` tells it
- `launch/`: from a container to running ranks
"""
