"""Adapters on the linears of a model whose own weights are frozen: LoRA, canonical LoRA, DoRA.

- `apply.py`: freezes a model, and puts adapters where the configuration asks for them
- `adapter.py`: the narrow matrices, and how they are divided beside the weight that they adapt
- `linears.py`: linears with an adapter
- `experts.py`: experts with adapters
- `magnitude.py`: the row norms that DoRA starts from
"""
