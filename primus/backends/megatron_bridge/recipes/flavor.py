"""`Flavor`: a function of a recipe module that makes a container from keywords, `llama3_8b_finetune_config(train_iters=20)`.

A recipe of one's own is a module with plain functions: what they take is read from their signature, as it is from a flavor's.
"""

import inspect
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from primus.backends.megatron_bridge.container import ConfigContainer
from primus.backends.megatron_bridge.recipes.arguments import Finetuning, Pretraining
from primus.backends.megatron_bridge.recipes.declared import read_as_declared
from primus.errors import ConfigError, PrimusError

__all__ = ["Flavor", "Function", "arguments_of", "built", "in_words"]

A = TypeVar("A")
Function = Callable[..., ConfigContainer]
_NULL_IS_A_VALUE = ("peft",)
"""Arguments whose null is no word for the flavor's own value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flavor(Generic[A]):
    """A function of keywords that are declared once, as fields of a dataclass."""

    arguments: type[A]
    """Dataclass with the arguments."""
    fill: Callable[[A], A]
    """Puts values in the place of None, some of which depend on others."""
    build: Callable[[A], ConfigContainer]
    """Makes the container of such arguments."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of arguments that nobody gives."""
    without: tuple[str, ...] = ()
    """Fields of the dataclass that this flavor does not take."""

    def __call__(self, **given: Any) -> ConfigContainer:
        """Return the container; TypeError for a keyword that is not an argument."""
        unknown = [name for name in given if name not in self.names]
        if unknown:
            raise TypeError(f"unexpected keyword argument {unknown[0]}; there are {', '.join(self.names)}")
        return self.build(self.filled(**given))

    def filled(self, **given: Any) -> A:
        """Return all arguments as a run with those given has them."""
        return self.fill(self.arguments(**{**self.defaults, **given}))

    @property
    def names(self) -> tuple[str, ...]:
        """Arguments in their order."""
        return tuple(each.name for each in fields(self.arguments) if each.name not in self.without)  # type: ignore[arg-type]

    @property
    def __signature__(self) -> inspect.Signature:
        """What `inspect` says of the flavor."""
        return inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=self.defaults.get(name)) for name in self.names],
            return_annotation=ConfigContainer,
        )


def arguments_of(function: Function) -> dict[str, inspect.Parameter]:
    """Return what a flavor takes by keyword; `**` takes what its TypedDict names, or all that flavors of ours do."""
    taken: dict[str, inspect.Parameter] = {}
    for name, each in inspect.signature(function).parameters.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            rest = (key for key in _behind_stars(function, name) if key not in taken)
            taken |= {key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in rest}
        elif each.kind is not inspect.Parameter.VAR_POSITIONAL:
            taken[name] = each
    return taken


def _behind_stars(function: Function, name: str) -> list[str]:
    """Return the keywords that the `**` parameter of a function stands for."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # of a plain callable, or in words that only its type checker knows
        hints = {}
    unpacked = next((each for each in typing.get_args(hints.get(name)) if typing.is_typeddict(each)), None)
    return (
        list(unpacked.__annotations__)
        if unpacked
        else [each.name for kind in (Finetuning, Pretraining) for each in fields(kind)]
    )


def built(function: Function, given: Mapping[str, Any], *, name: str) -> ConfigContainer:
    """Return a flavor's container; null is the flavor's own value.

    ConfigError names arguments that it does not take, and says what a function of one's own raised.
    """
    taken = arguments_of(function)
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inspect.signature(function).parameters.values()):
        problems = [
            f"{name} takes no argument {key}; it takes {', '.join(taken) or 'none'}" for key in given if key not in taken
        ]
        if problems:
            raise ConfigError(problems)
    missing = [
        key
        for key, each in taken.items()
        if each.default is inspect.Parameter.empty
        and key not in given
        and each.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    if missing:
        raise ConfigError(f"{name} needs {', '.join(missing)}; set it beside the flavor")
    chosen = {key: value for key, value in given.items() if value is not None or key in _NULL_IS_A_VALUE}
    try:
        container = function(**chosen)
    except PrimusError:
        raise
    except (Exception, SystemExit) as error:  # a function of one's own raises whatever its author thought of
        if isinstance(function, Flavor):
            raise
        raise ConfigError(f"{name} failed: {in_words(error)}") from error
    if not isinstance(container, ConfigContainer):
        raise ConfigError(f"{name} returned a {type(container).__name__}; a flavor returns a ConfigContainer")
    if not isinstance(function, Flavor):
        read_as_declared(container, name=name)
    return container


def in_words(error: BaseException) -> str:
    """Return an error of code that is not ours, with its place unless its text says that."""
    if isinstance(error, (ImportError, SyntaxError)):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
