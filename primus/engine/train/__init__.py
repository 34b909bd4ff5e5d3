"""Training itself.

- `pretrain.py`: a container file to a finished run
- `assemble.py`: model, gradients, optimizer, restored state, in one order
- `feeds.py`, `turns.py`: the data, opened before the model by one rank after the other, and its streams of batches
- `loop.py`: the loop and its callbacks' interface
- `stages.py`, `step.py`: one batch
- `evaluate.py`: one evaluation
- `callbacks/`: listeners
- `sample.py`: text from a trained run
"""
