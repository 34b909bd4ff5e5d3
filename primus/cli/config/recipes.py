"""`primus config recipes`: what `recipe` and `flavor` can name, and the arguments of each."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from primus.core.experiment import nearest
from primus.core.keys import show_value
from primus.errors import InputError

__all__ = ["recipes"]

Catalogue = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Recipe to flavor to argument to its value if nobody gives one."""


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A recipe or a flavor, with its arguments.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the recipes of framework megatron_bridge with their flavors."""
    from primus.backends.megatron_bridge.recipes import REFUSED_RECIPES

    found = _catalogue()
    refused = REFUSED_RECIPES if name is None else {}
    if name is not None:
        found = _named(found, name)
    if as_json:
        typer.echo(json.dumps({"recipes": found, "refused": refused}, indent=2))
    else:
        typer.echo("\n".join(_overview(found, refused) if name is None else _arguments(found)))


def _catalogue() -> Catalogue:
    from primus.backends.megatron_bridge.recipes import arguments_of, flavors_of, recipe_names

    return {
        recipe: {
            flavor: {argument: taken.default for argument, taken in arguments_of(function).items()}
            for flavor, function in flavors_of(recipe).items()
        }
        for recipe in recipe_names()
    }


def _named(found: Catalogue, name: str) -> Catalogue:
    """Return a recipe, or the flavor of that name alone."""
    from primus.backends.megatron_bridge.recipes import REFUSED_RECIPES

    if name in REFUSED_RECIPES:
        raise InputError(f"recipe {name} is not run by this engine: {REFUSED_RECIPES[name]}")
    if name in found:
        return {name: found[name]}
    chosen = {recipe: {name: flavors[name]} for recipe, flavors in found.items() if name in flavors}
    if not chosen:
        known = [*found, *(flavor for flavors in found.values() for flavor in flavors)]
        close = nearest(name, known)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"There are the recipes {', '.join(found)}."
        raise InputError(f"{name} is neither a recipe nor a flavor. {hint}")
    return chosen


def _overview(found: Catalogue, refused: Mapping[str, str]) -> Iterator[str]:
    for recipe, flavors in found.items():
        yield recipe
        yield from (f"  {flavor}" for flavor in flavors)
    yield from ("", "not run by this engine:")
    width = max(map(len, refused), default=0)
    yield from (f"  {recipe:{width}}  {why}" for recipe, why in refused.items())
    yield from ("", "With the name of a recipe or a flavor, this command lists the arguments; docs/recipes.md explains them.")


def _arguments(found: Catalogue) -> Iterator[str]:
    for recipe, flavors in found.items():
        for flavor, arguments in flavors.items():
            width = max(map(len, arguments), default=0)
            yield f"{recipe} {flavor}"
            yield from (
                f"  {name:{width}}  {show_value(value)}{_unsaid(recipe, flavor, name)}" for name, value in arguments.items()
            )


def _unsaid(recipe: str, flavor: str, name: str) -> str:
    """Return what an argument that is null comes to."""
    from primus.backends.megatron_bridge.recipes import flavors_of

    function = flavors_of(recipe)[flavor]
    if function.defaults.get(name) is not None:
        return ""
    value = getattr(function.filled(), name)
    without = getattr(function.filled(peft="none"), name) if "peft" in function.names else value
    if value is None and without is None:
        return ""
    if value == without:
        return f": {show_value(value)}"
    return f": {show_value(value)} with adapters, {show_value(without)} without"
