"""Training itself.

- `pretrain.py`: a container file to a finished run
- `assemble.py`: model, gradients, optimizer, restored state, in one order
- `feeds.py`, `tuning.py`, `turns.py`: documents or rows, opened before the model by one rank after the other, and their batches
- `loop.py`: the loop and its callbacks' interface
- `stages.py`, `step.py`: one batch
- `evaluate.py`: one evaluation
- `callbacks/`: listeners
- `sample.py`: text from a trained run
"""
