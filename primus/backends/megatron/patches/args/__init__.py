"""Megatron's cross-key derivations and rules, one subject a file; `DERIVATIONS` run first and in order, then all `RULES`.

- `loop.py`: intervals, evaluation, retired names
- `batch.py`: data parallelism, batch arithmetic, batch ramp-up
- `duration.py`: iterations or samples
- `schedule.py`: learning rate and weight decay
- `precision.py`: dtypes and loss scale
- `architecture.py`, `positions.py`: the model's sizes, activation and positions
- `parallelism.py`: tensor and sequence parallelism, gradient buckets
- `data.py`, `tokenizer.py`: sources, splits, vocabularies
- `checkpoint.py`: saving and loading
- `logging.py`: levels, TensorBoard, W&B, MLflow
- `rocm_arg_validation.py`: the accelerator vendor's rules
"""

from primus.backends.megatron.params import Derivation, Rule
from primus.backends.megatron.patches.args import (
    architecture,
    batch,
    checkpoint,
    data,
    duration,
    logging,
    loop,
    parallelism,
    positions,
    precision,
    rocm_arg_validation,
    schedule,
    tokenizer,
)

__all__ = ["DERIVATIONS", "RULES"]

_RUN = (loop, batch, duration, schedule, precision)
_MODEL = (architecture, positions, parallelism)
_AROUND = (data, tokenizer, checkpoint, logging, rocm_arg_validation)
_DERIVING = (data, tokenizer, duration, schedule, precision, parallelism, checkpoint, rocm_arg_validation)

DERIVATIONS: tuple[Derivation, ...] = tuple(derive for subject in _DERIVING for derive in subject.DERIVATIONS)
RULES: tuple[Rule, ...] = tuple(rule for subject in (*_RUN, *_MODEL, *_AROUND) for rule in subject.RULES)
