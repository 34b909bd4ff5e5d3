"""What single words set: `Setting` is a value for one field of the container.

`nested` reads a map that is named like a sub-config, `flat_key` any other key, and `apply` sets all fields.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.assignment import Fault, assign
from primus.backends.megatron_bridge.container import ConfigContainer
from primus.backends.megatron_bridge.routes import ARGUMENTS_ONLY, KEY_ALIASES, known_keys, routes_of
from primus.backends.megatron_bridge.translate.precision import named
from primus.core.experiment import Value, is_preset_source, nearest
from primus.core.experiment.value import Node, Tree, flat
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["Setting", "apply", "beaten", "defers", "expand_precision", "flat_key", "leaves", "nested", "where"]

_NULL_CLEARS = ("peft",)
"""Arguments of flavors whose null is a value; that of any other means what the recipe says."""
_PARTS = {"comm_overlap_config": "comm_overlap", "precision_config": "mixed_precision"}
"""Arguments of flavors that are maps of a sub-config's fields."""
_PRECISION_WORDS = ("bf16", "fp16", "params_dtype", "accumulate_allreduce_grads_in_fp32")


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A value that one field of the container shall have."""

    path: str
    """The field, dotted."""
    value: Value
    word: str
    """As the user wrote it: a flat key, or the dotted path of a map's entry."""
    is_nested: bool
    """It stands in a map that is named like a sub-config."""

    @property
    def source(self) -> str:
        """Where it was set; under which word, if that is not the field's."""
        same = not self.is_nested and self.word == self.path.rpartition(".")[2]
        return self.value.source if same else f"{self.value.source} as {self.word}"

    @property
    def said(self) -> str:
        """The word with its value and place, as the user wrote it; `skip_save: true` clears fields."""
        return where(self.word, replace(self.value, value=True) if self.word == "skip_save" else self.value)

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """What is greater wins; a field of a sub-config wins over what says all of it, as `precision_config` does."""
        source = self.value.source
        return ("." in self.path, 2 if source == "cli" else 0 if is_preset_source(source) else 1, self.is_nested)


def nested(key: str, node: Node) -> Iterator[Setting]:
    """Yield the settings of a map that is named like a sub-config."""
    for path, value in leaves(key, node):
        if path != "peft.type":
            yield Setting(path=path, value=value, word=path, is_nested=True)


def leaves(path: str, node: Node) -> Iterator[tuple[str, Value]]:
    """Yield the values below a node by their dotted paths."""
    if isinstance(node, Value):
        yield path, node
        return
    for name, child in node.children.items():
        is_empty = isinstance(child, Tree) and not child.children
        yield from leaves(f"{path}.{name}", flat(child) if is_empty else child)


def defers(key: str, value: Value, arguments: Collection[str]) -> bool:
    """Tell whether a value is null and means what the recipe says."""
    if value.value is not None or (key in arguments and key in _NULL_CLEARS):
        return False
    return key in arguments or is_preset_source(value.source)


def flat_key(
    key: str,
    node: Node,
    config: ConfigContainer,
    settings: list[Setting],
    direct: dict[str, Value],
    problems: list[str],
) -> None:
    """Sort one flat key: settings of fields, a Megatron key without one, or a word that is not known."""
    value, megatron = flat(node), KEY_ALIASES.get(key, key)
    if key == "skip_save":
        settings += _without_saves(value, problems)
    elif key in _PRECISION_WORDS and config.mixed_precision is not None and value.value is not None:
        problems.append(f"{where(key, value)}: dtypes are what precision_config says; set that, to bf16_mixed for one.")
    elif key in ARGUMENTS_ONLY and key != "finetune_lr":
        # What it decides the flavor has decided.
        settings += [Setting(path=path, value=value, word=key, is_nested=False) for path in ARGUMENTS_ONLY[key]]
    elif key in _PARTS and isinstance(node, Tree):
        for path, each in leaves(key, node):
            field = f"{_PARTS[key]}.{path.partition('.')[2]}"
            settings.append(Setting(path=field, value=each, word=path, is_nested=False))
    elif routes := routes_of(key, config):
        settings += [Setting(path=path, value=value, word=key, is_nested=False) for path in routes]
    elif megatron in KEYS:
        direct[megatron] = value if megatron == key else replace(value, source=f"{value.source} as {key}")
    else:
        close = nearest(key, known_keys(config))
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        problems.append(f"{where(key, value)} is not a key of framework megatron_bridge.{hint}")


def _without_saves(value: Value, problems: list[str]) -> Iterator[Setting]:
    if not (value.value is None or isinstance(value.value, bool)):
        problems.append(f"{where('skip_save', value)} must be true or false.")
    if value.value is True:
        for name in ("save", "save_interval"):
            yield Setting(path=f"checkpoint.{name}", value=Value(None, value.source), word="skip_save", is_nested=False)


def apply(config: ConfigContainer, settings: list[Setting], problems: list[str]) -> dict[str, str]:
    """Set all fields in the order of the list, so that the last one wins; return where each one was decided."""
    problems += _two_rates(settings)
    sources: dict[str, str] = {}
    for each in settings:
        if not each.is_nested and each.word in ARGUMENTS_ONLY and each.word != "finetune_lr":
            if each.word == "peft" and each.value.value in (None, "none"):
                config.peft = None  # which a flavor without that argument may have filled
            sources[each.path] = each.source
            continue
        if each.path.startswith("peft.") and config.peft is None and not each.is_nested:
            problems.append(f"{where(each.word, each.value)}: peft is none, so there are no adapters; set peft: lora.")
            continue
        try:
            expand_precision(config, each.path)
            if assign(config, each.path.split("."), each.value.value):
                sources[each.path] = each.source
            elif not is_preset_source(each.value.source):
                problems.append(_must_have_value(config, each))
        except Fault as fault:
            problems.append(f"{where(each.word, each.value)} {fault}")
        except ConfigError as error:
            problems += [f"{problem} ({sources.get('mixed_precision', 'recipe')})" for problem in error.problems]
    return sources


def beaten(settings: list[Setting]) -> Iterator[str]:
    """Yield words of the user's all whose fields another one, set equally near, decides, and which one that is."""
    last = {each.path: each for each in settings}
    for word in dict.fromkeys(each.word for each in settings if each.word not in ARGUMENTS_ONLY or each.word == "finetune_lr"):
        own = [each for each in settings if each.word == word]
        above = [last[each.path] for each in own]
        if all(_goes_before(winner, each) for winner, each in zip(above, own, strict=True)):
            yield f"{own[0].said} has no effect: {above[0].said} goes before it."


def _goes_before(winner: Setting, other: Setting) -> bool:
    """Tell whether another word decides a field, set as near as the user's own and to something else."""
    return winner.word != other.word and winner.rank[1] == other.rank[1] > 0 and winner.value.value != other.value.value


def _must_have_value(config: ConfigContainer, setting: Setting) -> str:
    """Return why a field cannot be cleared."""
    held: Any = config
    for name in setting.path.split("."):
        held = getattr(held, name, None)
    said = "" if held is None or is_dataclass(held) else f", and it is {show_value(held)}, as the recipe says"
    return f"{where(setting.word, setting.value)}: {setting.path} cannot be empty; leave it out{said}."


def _two_rates(settings: list[Setting]) -> Iterator[str]:
    """Yield what is wrong if `lr` and `finetune_lr` differ."""
    rates = {each.word: each for each in settings if each.word in ("lr", "finetune_lr")}
    if len(rates) == 2 and rates["lr"].value.value != rates["finetune_lr"].value.value:
        both = " and ".join(where(name, rates[name].value) for name in ("lr", "finetune_lr"))
        yield f"{both} are two names of one rate, and differ; keep finetune_lr."


def expand_precision(config: Any, path: str) -> None:
    """Turn a precision that is still a name into its fields before one of them is set."""
    if path.startswith("mixed_precision.") and isinstance(getattr(config, "mixed_precision", None), str):
        config.mixed_precision = named(config.mixed_precision)


def where(name: str, value: Value) -> str:
    """Return `name value (source)` for a message."""
    return f"{name} {show_value(value.value)} ({value.source})"
