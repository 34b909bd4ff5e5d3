"""From reduced gradients to updated weights.

- `build.py`: `build_optimizer`, the optimizer of a run from its configuration
- `optimizer.py`: `Optimizer`: norm, overflow check, clipping, update, gather; state for checkpoints
- `early.py`: `EarlyUpdate`: a step ahead of the norm over all stages, which can be taken back
- `schedule.py`: learning rate and weight decay over the run; no torch
- `grouping.py`: who decays, and whose learning rate is its own
- `flat.py`: the flat ranges that are updated, with their state
- `norm.py`: global norm, clipping, count of zeros
- `rule.py`: what an update rule is; `adam.py`, `sgd.py`: the rules
- `watch.py`: the spike rule, and a look at each rank's own gradients
"""

from primus.engine.optim.build import build_optimizer
from primus.engine.optim.optimizer import Optimizer, Update
from primus.engine.optim.schedule import OptParamScheduler
from primus.engine.optim.watch import GradientWatch, SpikeWatch

__all__ = ["GradientWatch", "OptParamScheduler", "Optimizer", "SpikeWatch", "Update", "build_optimizer"]
