"""Using a trained model.

- `sampling.py`: continue a prompt
"""

from primus.engine.inference.sampling import generate

__all__ = ["generate"]
