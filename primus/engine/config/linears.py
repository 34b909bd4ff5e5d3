"""The linears of a model by their names, and which of them adapters are asked for. Counted from the configuration alone.

`targets` is the name to use. A linear holds parts where several projections of other programs are one here: q, k and v, or gate
and up. Canonical LoRA names the parts, the other schemes the linears.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from primus.engine.config.blocks import LayerKind
from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.peft import PEFTConfig

__all__ = ["PARTS", "SPELLED", "PartRows", "Targets", "linear_names", "part_rows", "targets"]

PARTS = {"linear_qkv": ("q", "k", "v"), "linear_fc1": ("gate", "up")}
"""Parts of linears in the order of their rows; without a gate, `linear_fc1` has the last alone."""
SPELLED = {
    "q": "linear_q",
    "k": "linear_k",
    "v": "linear_v",
    "gate": "linear_fc1_gate",
    "up": "linear_fc1_up",
}
"""What canonical LoRA calls a part."""
_ALIASES = {
    "o_proj": "linear_proj",
    "down_proj": "linear_fc2",
    "q_a_proj": "linear_q_down_proj",
    "q_b_proj": "linear_q_up_proj",
    "kv_a_proj_with_mqa": "linear_kv_down_proj",
    "kv_b_proj": "linear_kv_up_proj",
}
_PART_ALIASES = {
    "q_proj": "linear_q",
    "k_proj": "linear_k",
    "v_proj": "linear_v",
    "gate_proj": "linear_fc1_gate",
    "up_proj": "linear_fc1_up",
}
_ALL = "all-linear"


@dataclass(frozen=True, kw_only=True, slots=True)
class Targets:
    """What is adapted."""

    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of linears, with those of their parts that have an adapter; no parts: the linear has one as a whole."""
    problems: tuple[str, ...] = ()
    """Entries that name nothing, each with what there is."""


def targets(peft: PEFTConfig, model: ModelConfig) -> Targets:
    """Return what the entries of a configuration name in the whole model, whatever the layout."""
    spelled = list(_spelled(peft, model))
    if not peft.target_modules:
        return _all_but(peft, spelled)
    problems, found, named = [], dict[str, list[str]](), set[str]()
    for entry in peft.target_modules:
        pattern = _pattern(entry, canonical=peft.scheme == "canonical_lora")
        hits = [each for each in spelled if pattern is not None and pattern(each[2])]
        if not hits:
            problems.append(_names_nothing(entry, peft, sorted({_last(name) for _, _, name in spelled})))
        for linear, part, name in hits:
            found.setdefault(linear, []).append(part)
            named.add(name)
    problems += _half_named("target_modules", found, named, spelled)
    return Targets(parts={linear: _ordered(parts) for linear, parts in found.items()}, problems=tuple(problems))


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRows:
    """Where the parts of a fused linear have their rows: in each group first those of one part, then those of the next."""

    widths: Mapping[str, int]
    """Rows of each part in a group."""
    groups: int
    divides_groups: bool
    """Ranks divide the groups; False: there is one, and they divide each part."""


def part_rows(linear: str, outputs: int, model: ModelConfig) -> PartRows:
    """Return where the parts of a fused linear lie in its `outputs` rows."""
    if linear.endswith("linear_qkv"):
        a = model.attention
        queries = a.num_attention_heads // a.num_query_groups * (2 if a.output_gate else 1)
        widths = {"q": queries * a.kv_channels, "k": a.kv_channels, "v": a.kv_channels}
        return PartRows(widths=widths, groups=a.num_query_groups, divides_groups=True)
    names = ("gate", "up") if model.activation in GATED_ACTIVATIONS else ("up",)
    return PartRows(widths=dict.fromkeys(names, outputs // len(names)), groups=1, divides_groups=False)


def linear_names(model: ModelConfig) -> Iterator[str]:
    """Yield the names of the whole model's linears that can have adapters; the output layer and routers are none of them."""
    kinds = model.layer_kinds()
    known = {kind: tuple(_of_layer(model, kind)) for kind in set(kinds)}
    for number, kind in enumerate(kinds):
        yield from (f"decoder.layers.{number}.{name}" for name in known[kind])
    for depth in range(model.mtp.num_layers):
        prefix = f"mtp.layers.{depth}."
        yield f"{prefix}eh_proj"
        yield from (f"{prefix}transformer_layer.{name}" for name in known[kinds[-1]])


def _of_layer(model: ModelConfig, kind: LayerKind) -> Iterator[str]:
    match kind.mixing:
        case "attention":
            yield from (f"self_attention.{name}" for name in _of_attention(model))
        case "gated_delta" | "short_conv":
            yield from ("self_attention.in_proj", "self_attention.out_proj")
        case "kimi_delta":
            names = ("in_proj", "gates_down_proj", "decay_up_proj", "out_gate_up_proj", "out_proj")
            yield from (f"self_attention.{name}" for name in names)
        case "mamba":
            yield from ("mixer.in_proj", "mixer.out_proj")
    if kind.feed_forward != "mlp" or kind.mixing == "mamba":
        return
    if not kind.is_sparse:
        yield from ("mlp.linear_fc1", "mlp.linear_fc2")
        return
    yield from ("mlp.experts.linear_fc1", "mlp.experts.linear_fc2")
    if model.moe.shared_expert_intermediate_size is not None:
        yield from ("mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2")


def _of_attention(model: ModelConfig) -> Iterator[str]:
    mla = model.attention.mla
    if not mla.enabled:
        yield "linear_qkv"
    elif mla.q_lora_rank is None:
        yield "linear_q_proj"
    else:
        yield from ("linear_q_down_proj", "linear_q_up_proj")
    if mla.enabled:
        yield from ("linear_kv_down_proj", "linear_kv_up_proj")
    yield "linear_proj"


def _spelled(peft: PEFTConfig, model: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Yield each linear, one of its parts ("" for the whole), and the name that an entry may give it."""
    for linear in linear_names(model):
        prefix, _, last = linear.rpartition(".")
        parts = PARTS.get(last, ()) if peft.scheme == "canonical_lora" else ()
        if last == "linear_fc1" and parts and model.activation not in GATED_ACTIVATIONS:
            parts = ("up",)
        if not parts:
            yield linear, "", linear
        for part in parts:
            # The matrices of experts are stacked: the two halves of their first linear have one adapter.
            yield linear, "" if ".experts." in linear else part, f"{prefix}.{SPELLED[part]}"


def _all_but(peft: PEFTConfig, spelled: Sequence[tuple[str, str, str]]) -> Targets:
    excluded = [_pattern(entry, canonical=peft.scheme == "canonical_lora") for entry in peft.exclude_modules]
    kept = [each for each in spelled if not any(pattern is not None and pattern(each[2]) for pattern in excluded)]
    found: dict[str, list[str]] = {}
    for linear, part, _ in kept:
        found.setdefault(linear, []).append(part)
    problems = [] if found else ["exclude_modules leaves no linear to adapt; take one out"]
    problems += _half_named("exclude_modules", found, {name for _, _, name in kept}, spelled)
    return Targets(parts={linear: _ordered(parts) for linear, parts in found.items()}, problems=tuple(problems))


def _half_named(field: str, found: Mapping[str, object], named: set[str], spelled: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the problem of a gate of experts that is named without what it gates, or the other way round."""
    halves = [(linear, name) for linear, part, name in spelled if ".experts." in linear and not part and linear in found]
    left = sorted({_last(name) for _, name in halves if name not in named})
    both = " and ".join(SPELLED[part] for part in PARTS["linear_fc1"])
    return [f"{field}: gate and up of experts share one adapter: name both {both} of them, or neither"] if left else []


class _Pattern:
    """An entry: a last name, a whole name with `*`, or all there is."""

    def __init__(self, entry: str) -> None:
        self._whole = re.compile(".*".join(map(re.escape, entry.split("*")))) if "*" in entry else None
        self._last, self._is_all = entry, entry == _ALL

    def __call__(self, name: str) -> bool:
        if self._whole is not None:
            return self._whole.fullmatch(name) is not None
        return self._is_all or self._last in (name, _last(name))


def _pattern(entry: str, *, canonical: bool) -> _Pattern | None:
    """Return what an entry means; None where it names a part and the scheme has none."""
    prefix, dot, last = entry.rpartition(".")
    if last in _PART_ALIASES:
        return _Pattern(f"{prefix}{dot}{_PART_ALIASES[last]}") if canonical else None
    return _Pattern(f"{prefix}{dot}{_ALIASES.get(last, last)}")


def _names_nothing(entry: str, peft: PEFTConfig, there: list[str]) -> str:
    last = _last(entry)
    if peft.scheme != "canonical_lora" and (last in _PART_ALIASES or last in SPELLED.values()):
        part = _PART_ALIASES.get(last, last)
        whole = "linear_fc1" if "fc1" in part else "linear_qkv"
        hint = (
            f"{last} is a part of {whole} here: name {whole}, or take peft canonical_lora, which has an adapter for each part"
        )
    elif peft.scheme == "canonical_lora" and last in PARTS:
        parts = ", ".join(SPELLED[part] for part in PARTS[last])
        hint = f"canonical_lora has an adapter for each part of {last}: name {parts}, or take peft lora"
    else:
        hint = f"the model has {', '.join(there)}"
    return f"target_modules: {entry!r} names no linear of the model; {hint}"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _ordered(parts: Iterable[str]) -> tuple[str, ...]:
    """Return parts in the order of their rows, each once."""
    order = [part for group in PARTS.values() for part in group]
    return tuple(sorted({part for part in parts if part}, key=order.index))
