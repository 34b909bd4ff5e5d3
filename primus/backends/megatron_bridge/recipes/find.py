"""From the words `recipe` and `flavor` to the function that they name.

`find_flavor` is the name to use. A recipe is a module: one of this package, one of an installed `megatron.bridge`, or one of
the user's own by its dotted path; a flavor is a function in it.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from primus.backends.megatron_bridge.container import ConfigContainer
from primus.backends.megatron_bridge.recipes import foreign
from primus.backends.megatron_bridge.recipes.flavor import Flavor, Function, in_words
from primus.backends.megatron_bridge.recipes.refused import refusal
from primus.core.experiment import nearest
from primus.errors import ConfigError

__all__ = ["find_flavor", "flavors_of", "recipe_names"]

_OURS = __package__
_THEIRS = "megatron.bridge.recipes"


def find_flavor(recipe: str, flavor: str) -> Function:
    """Return the function; ConfigError with what was tried and the nearest names if there is none."""
    if why := refusal(recipe.removeprefix(f"{_OURS}."), flavor):
        raise ConfigError(f"recipe {recipe}, flavor {flavor}: {why}")
    tried = list(_candidates(recipe))
    there = [(name, module) for name in tried if (module := _imported(name)) is not None]
    for name, module in there:
        function = getattr(module, flavor, None)
        if callable(function):
            return foreign.translating(function, name) if name.startswith(f"{_THEIRS}.") else function
    raise ConfigError(_no_flavor(recipe, flavor, [module for _, module in there]) if there else _no_recipe(recipe, tried))


def recipe_names() -> list[str]:
    """Return the recipes of this package."""
    package = importlib.import_module(_OURS)
    names = (each.name for each in pkgutil.walk_packages(package.__path__, f"{_OURS}.") if not each.ispkg)
    return sorted(name.removeprefix(f"{_OURS}.") for name in names if flavors_of(name.removeprefix(f"{_OURS}.")))


def flavors_of(recipe: str) -> dict[str, Flavor[Any]]:
    """Return the flavors of one of this package's recipes, in the order of the file."""
    found = vars(importlib.import_module(f"{_OURS}.{recipe}"))
    return {name: value for name, value in found.items() if isinstance(value, Flavor)}


def flavors_in(module: ModuleType) -> dict[str, Function]:
    """Return the flavors in a module: those of ours, and functions that say that they return a container."""
    names = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in names.items() if isinstance(value, Flavor) or _returns_container(value, module)}


def _returns_container(value: object, module: ModuleType) -> bool:
    returned = getattr(value, "__annotations__", {}).get("return")
    is_own = getattr(value, "__module__", None) == module.__name__ and not module.__name__.startswith(f"{_OURS}.")
    return is_own and callable(value) and getattr(returned, "__name__", returned) == ConfigContainer.__name__


def _candidates(recipe: str) -> Iterator[str]:
    if recipe.startswith("primus."):
        yield recipe
        return
    yield f"{_OURS}.{recipe}"
    yield f"{_THEIRS}.{recipe}"
    yield recipe


def _imported(name: str) -> ModuleType | None:
    """Return a module, None if there is none; ConfigError if it is there and cannot be imported."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        found = importlib.util.find_spec(name)
        return None if found is None else importlib.import_module(name)
    except Exception as error:  # one's own module raises whatever its author thought of
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            return None
        raise ConfigError(f"recipe {name} cannot be imported: {in_words(error)}") from error


def _no_recipe(recipe: str, tried: list[str]) -> str:
    known = recipe_names()
    ends = {name.rsplit(".", 1)[-1]: name for name in known}
    close = nearest(recipe, known) or [ends[end] for end in nearest(recipe.rsplit(".", 1)[-1], ends)]
    hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(known)}."
    return f"recipe {recipe}: there is no module {', '.join(tried)}. {hint}"


def _no_flavor(recipe: str, flavor: str, modules: list[ModuleType]) -> str:
    below = [name for name in recipe_names() if name.startswith(f"{recipe}.")]
    if below:
        return f"recipe {recipe} is a family: name one of {', '.join(below)}."
    known = [name for module in modules for name in flavors_in(module)]
    close = nearest(flavor, known)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(known) or 'none'}."
    return f"flavor {flavor}: recipe {recipe} has none of that name. {hint}"
