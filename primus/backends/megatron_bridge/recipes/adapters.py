"""What flavors adapt: ranks and linears of the schemes."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from primus.backends.megatron_bridge.assignment import SCHEMES
from primus.backends.megatron_bridge.container import PEFT
from primus.backends.megatron_bridge.recipes.arguments import Finetuning
from primus.core.experiment import nearest
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["ATTENTION", "LATENT", "Lora", "adapter", "is_adapted"]

ATTENTION = ("linear_qkv", "linear_proj")
LATENT = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")
"""Attention with latent queries, keys and values."""

_NONE = ("none", "null")
_CANONICAL = {
    "linear_qkv": ("linear_q", "linear_k", "linear_v"),
    "linear_fc1": ("linear_fc1_up", "linear_fc1_gate"),
}
_ARGUMENTS = {"peft_dim": "dim", "peft_alpha": "alpha", "peft_dropout": "dropout", "peft_target_modules": "target_modules"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """What a flavor adapts; None: what the scheme does."""

    dim: int | None = None
    """Rank."""
    alpha: float | None = None
    """B A is multiplied by alpha / dim."""
    target_modules: tuple[str, ...] | None = None
    """Linears, under the names of LoRA."""


def is_adapted(peft: Any) -> bool:
    """Tell whether a value of `peft` asks for adapters."""
    kind = peft.get("type", "lora") if isinstance(peft, dict) else peft
    return not (kind is None or (isinstance(kind, str) and kind.lower() in _NONE))


def adapter(args: Finetuning, flavor: Lora) -> PEFT | None:
    """Return the adapters that the arguments ask for; ConfigError for a scheme that is not known, or sizes without one."""
    if isinstance(args.peft, PEFT):
        found = args.peft
    elif not is_adapted(args.peft):
        given = {name: value for name in _ARGUMENTS if (value := getattr(args, name)) is not None}
        if isinstance(args.peft, dict):
            given |= {f"peft.{name}": value for name, value in args.peft.items() if name != "type" and value is not None}
        for name, value in given.items():
            raise ConfigError(f"{name} {show_value(value)}: peft is none, so there are no adapters; set peft: lora")
        return None
    else:
        found = _of_scheme(args.peft, flavor)
    for name, field in _ARGUMENTS.items():
        if (value := getattr(args, name)) is not None:
            setattr(found, field, [value] if isinstance(value, str) else value)
    return found


def _of_scheme(peft: Any, flavor: Lora) -> PEFT:
    """Return a scheme with the flavor's values; a map has the scheme as its `type` and fields that are not null beside it."""
    given = dict(peft) if isinstance(peft, dict) else {"type": peft}
    name = str(given.pop("type", "lora")).lower()
    if name not in SCHEMES:
        close = nearest(name, [*SCHEMES, "none"])
        raise ConfigError(f"peft {show_value(name)} is not known; there are none, {', '.join(SCHEMES)}." + _meant(close))
    found = SCHEMES[name]()
    if flavor.dim is not None:
        found.dim = flavor.dim
    if flavor.alpha is not None:
        found.alpha = flavor.alpha
    if flavor.target_modules is not None:
        found.target_modules = _spelled(flavor.target_modules, canonical=name == "canonical_lora")
    known = [each.name for each in fields(found)]
    for field, value in given.items():
        if field not in known:
            raise ConfigError(f"peft.{field}: adapters have no such field." + _meant(nearest(field, known)))
        if value is not None:
            setattr(found, field, value)
    return found


def _spelled(modules: Sequence[str], *, canonical: bool) -> list[str]:
    return [part for name in modules for part in (_CANONICAL.get(name, (name,)) if canonical else (name,))]


def _meant(close: list[str]) -> str:
    return f" Did you mean {' or '.join(close)}?" if close else ""
