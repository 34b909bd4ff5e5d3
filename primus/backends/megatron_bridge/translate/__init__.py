"""From a recipe's container to what the engine reads: flat Megatron values, and what has no such key.

- `raw.py`: `Raw`, the container with the places where its values were set
- `fields.py`: which field is which flat key, and why others are none
- `values.py`: `flat_values`, all flat values of a container
- `precision.py`: `precision_config`
- `overlap.py`: `comm_overlap_config`
- `data.py`: documents, rows, packs
- `adapters.py`: adapters
- `validation.py`: evaluation
- `notes.py`: what the user set that changes nothing
"""
