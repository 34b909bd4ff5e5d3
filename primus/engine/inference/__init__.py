"""Using a trained model.

- `sampling.py`: continue a prompt
"""
