"""The front door of `framework: megatron_bridge`: a recipe with the user's values over it, as a container.

- `container/`: what a recipe returns, under Megatron-Bridge's names
- `recipes/`: the recipes, a module a family
- `keys.py`: the documented keys
- `argument_builder.py`, `dataset_arguments.py`, `words.py`: words before they meet a recipe
- `config_utils.py`: words merged into what a recipe returns; `settings.py` reads single ones, `routes.py` says where each
  goes, `assignment.py` puts it there, `consequences.py` says what gives way to it
- `translate/`: a container as flat Megatron keys and what has none; `rules.py`: what those keys cannot state
- `build.py`: the whole way to the engine's container
- `resolved.py`: the same as one looks at it; `field_help.py`: what a field means
- `model_keys.py`: a model under those names and as flat Megatron keys
"""
