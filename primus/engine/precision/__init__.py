"""Number formats of a run.

- `dtypes.py`: dtypes by name, and the dtype of the main parameters
- `scaler.py`: static and dynamic loss scaling
"""

from primus.engine.precision.dtypes import DTYPES, dtype_of, main_dtype
from primus.engine.precision.scaler import ConstantScaler, DynamicScaler, LossScaler, build_loss_scaler

__all__ = [
    "DTYPES",
    "ConstantScaler",
    "DynamicScaler",
    "LossScaler",
    "build_loss_scaler",
    "dtype_of",
    "main_dtype",
]
