"""Recipes: modules of functions that return a run's container, `recipes.llama.llama3.llama3_8b_finetune_config(peft="lora")`.

- `find.py`: `find_flavor`, from the words `recipe` and `flavor` to the function
- `refused.py`: what Megatron-Bridge has and this engine does not run
- `foreign.py`: containers of an installed Megatron-Bridge
- `flavor.py`: `Flavor`, such a function, and `built`, which calls one
- `arguments.py`: the keyword arguments
- `declared.py`: what a flavor of one's own returns, read as its fields declare
- `finetuning.py`, `pretraining.py`: what makes flavors of a model and a family's values
- `parts.py`, `rows.py`, `adapters.py`: their sub-configs
- `model.py`: `Model`, the shape of a released model
- `auto.py`: any model that a Hugging Face folder holds
- a package a family, `gpt/vanilla_gpt.py` with a tiny model to try a run with among them
"""

from primus.backends.megatron_bridge.recipes.find import find_flavor, flavors_of, recipe_names
from primus.backends.megatron_bridge.recipes.flavor import arguments_of, built
from primus.backends.megatron_bridge.recipes.refused import REFUSED_RECIPES

__all__ = ["REFUSED_RECIPES", "arguments_of", "built", "find_flavor", "flavors_of", "recipe_names"]
