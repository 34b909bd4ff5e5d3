"""The front door of `framework: megatron_bridge`: a recipe with the user's values over it, as a container.

- `container/`: what a recipe returns, under Megatron-Bridge's names
- `recipes/`: the recipes, a module a family
- `model_keys.py`: a model under those names and as flat Megatron keys
"""
