"""Layers that differ, as a JSON text describes them in the manner of pruned Llama models.

    {"num_hidden_layers": 2, "hidden_size": 256, ..., "block_configs": [
      {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.25}},
      {"attention": {"no_op": true},         "ffn": {"replace_with_linear": true}}]}

Its top level repeats flat keys, which have to agree. `blocks` gives each layer's halves and width.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.architecture import num_layers, num_query_groups
from primus.backends.megatron.patches.args.positions import position_type

__all__ = ["ENCODED", "PATH", "RULES", "feed_forward", "is_heterogeneous", "mixing", "widths"]

PATH, ENCODED = "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"
Block = Mapping[str, Any]
_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants of the frequency scaling, which no key changes."""
_KNOWN = {"no_op", "replace_with_linear", "n_heads_in_group", "num_query_groups", "ffn_mult", "ffn_hidden_size"}


def is_heterogeneous(p: Params) -> bool:
    """Tell whether layers are described one by one."""
    return p[PATH] is not None or p[ENCODED] is not None


def mixing(p: Params) -> list[str]:
    """Return the first half of each layer."""
    return [_kind(attention, "attention") for attention, _ in _blocks(p)]


def feed_forward(p: Params) -> list[str]:
    """Return the second half of each layer."""
    return [_kind(mlp, "mlp") for _, mlp in _blocks(p)]


def widths(p: Params) -> list[int]:
    """Return the width of each layer's feed-forward part, 0 where there is none."""
    hidden = int(p.required("hidden_size"))
    return [_width(mlp, hidden) or 0 if _kind(mlp, "mlp") == "mlp" else 0 for _, mlp in _blocks(p)]


def layers_are_readable(p: Params) -> Problems:
    """The text is JSON with a list of layers, each of which is described."""
    if not is_heterogeneous(p):
        return
    where, whole = p.where(_key(p)), _read(p)
    if isinstance(whole, str):
        yield f"{where}: {whole}."
        return
    for number, block in enumerate(whole["block_configs"]):
        for problem in _problems_of(block):
            yield f"{where}: layer {number}: {problem}."


def layers_agree_with_keys(p: Params) -> Problems:
    """What text and keys both say is the same; all differences are named at once."""
    if not is_heterogeneous(p):
        return
    whole = _whole(p)
    differences = [
        f"{key} is {_shown(ours)}, and {name} is {_shown(theirs)}"
        for key, ours, name, theirs in _said_twice(p, whole)
        if ours != theirs
    ]
    differences += [text for text, is_true in _needed(p, whole) if not is_true]
    if differences:
        yield f"{p.where(_key(p))} does not agree with the keys: {'; '.join(differences)}."


def groups_are_equal(p: Params) -> Problems:
    """All layers with attention have the same groups, those of the keys."""
    if not is_heterogeneous(p):
        return
    heads = p.required("num_attention_heads")
    said = {_groups(attention, heads) for attention, _ in _blocks(p) if _kind(attention, "attention") == "attention"} - {None}
    if said and said != {num_query_groups(p)}:
        shown = ", ".join(f"{number:g}" for number in sorted(number for number in said if number is not None))
        yield (
            f"{p.where(_key(p))} has layers with {shown} query groups, the keys say {num_query_groups(p)}: let all layers and "
            "num_query_groups (with group_query_attention: true) agree."
        )


def widths_are_divided_evenly(p: Params) -> Problems:
    """Tensor-parallel ranks have equal parts of every layer."""
    ranks = p["tensor_model_parallel_size"]
    if not is_heterogeneous(p) or ranks == 1:
        return
    odd = sorted({width for width in widths(p) if width % ranks})
    if odd:
        yield f"{p.where(_key(p))} has feed-forward widths {odd} that {p.where('tensor_model_parallel_size')} does not divide."
    if p.required("hidden_size") % ranks and "linear" in {*mixing(p), *feed_forward(p)}:
        yield f"{p.where('hidden_size')} is not divisible by {p.where('tensor_model_parallel_size')} (replace_with_linear)."


def families_are_apart(p: Params) -> Problems:
    """The description knows plain attention and dense feed-forward parts."""
    if not is_heterogeneous(p):
        return
    for key, off in (("multi_latent_attention", "false"), ("num_experts", "null")):
        if p[key]:
            yield f"{p.where(key)} does not go with {p.where(_key(p))}: set {key}: {off}."
    if p["model_type"] != "gpt":
        yield f"{p.where('model_type')} does not go with {p.where(_key(p))}: set model_type: gpt."


RULES: tuple[Rule, ...] = (
    layers_are_readable,
    layers_agree_with_keys,
    groups_are_equal,
    widths_are_divided_evenly,
    families_are_apart,
)


def _key(p: Params) -> str:
    return PATH if p[ENCODED] is None else ENCODED


def _read(p: Params) -> dict[str, Any] | str:
    """Return the description, or what is wrong with it; the text wins over the file."""
    try:
        text = Path(p.input_path(p[PATH])).read_text(encoding="utf-8") if p[ENCODED] is None else _plain(p[ENCODED])
        whole = json.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        return f"it cannot be read ({error})"
    except json.JSONDecodeError as error:
        return f"it is no JSON ({error})"
    blocks = whole.get("block_configs") if isinstance(whole, dict) else None
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        return "a JSON object with a list block_configs, one object for each layer, is needed"
    if len(blocks) != num_layers(p):
        return f"block_configs describes {len(blocks)} layers and num_layers is {num_layers(p)}"
    return dict(whole)


def _plain(text: str) -> str:
    """Return JSON as it is, or out of base64."""
    if text.lstrip().startswith("{"):
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return text


def _whole(p: Params) -> dict[str, Any]:
    whole = _read(p)
    if isinstance(whole, str):
        raise Unreadable(_key(p))
    return whole


def _blocks(p: Params) -> list[tuple[Block, Block]]:
    blocks = _whole(p)["block_configs"]
    if any(True for block in blocks for _ in _problems_of(block)):
        raise Unreadable(_key(p))
    return [_halves(block) for block in blocks]


def _halves(block: Block) -> tuple[Any, Any]:
    return block.get("attention"), block.get("ffn", block.get("mlp"))


def _problems_of(block: Block) -> Iterator[str]:
    for name, half in zip(("attention", "ffn"), _halves(block), strict=True):
        if not isinstance(half, dict):
            yield f"{name} is missing"
            continue
        if half.get("no_op") and half.get("replace_with_linear"):
            yield f"{name} is both no_op and replace_with_linear"
        unknown = [key for key, value in half.items() if key not in _KNOWN and value]
        if unknown:
            yield f"{name} has {', '.join(unknown)}, which this engine does not have"
        numbers = {key: half.get(key) for key in sorted(_KNOWN - {"no_op", "replace_with_linear"}) if half.get(key) is not None}
        wrong = [key for key, number in numbers.items() if isinstance(number, bool) or not _is_positive(key, number)]
        if wrong:
            yield f"{name}: {', '.join(f'{key} {numbers[key]!r}' for key in wrong)} is no size"
        elif name == "ffn" and _kind(half, "mlp") == "mlp" and not {"ffn_mult", "ffn_hidden_size"} & set(numbers):
            yield "ffn needs ffn_mult or ffn_hidden_size"


def _is_positive(key: str, number: Any) -> bool:
    return isinstance(number, int if key != "ffn_mult" else (int, float)) and number > 0


def _kind(half: Block, full: str) -> str:
    if half.get("no_op"):
        return "none"
    return "linear" if half.get("replace_with_linear") else full


def _width(mlp: Block, hidden: int) -> int:
    """Return the width: two thirds of a multiple of the hidden size, rounded up to a multiple of 256."""
    if mlp.get("ffn_hidden_size") is not None:
        return int(mlp["ffn_hidden_size"])
    return -(-int(2 * mlp["ffn_mult"] * hidden / 3) // 256) * 256


def _groups(attention: Block, heads: int) -> float | None:
    if attention.get("num_query_groups") is not None:
        return int(attention["num_query_groups"])
    size = attention.get("n_heads_in_group")
    return None if size is None else heads / size


def _said_twice(p: Params, whole: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield key, its value, field of the description and its value; what the description leaves out is not compared."""
    tied = whole.get("tie_word_embeddings")
    pairs = (
        ("hidden_size", "hidden_size", whole.get("hidden_size")),
        ("num_layers", "num_hidden_layers", whole.get("num_hidden_layers")),
        ("num_attention_heads", "num_attention_heads", whole.get("num_attention_heads")),
        ("untie_embeddings_and_output_weights", "not tie_word_embeddings", None if tied is None else not tied),
        ("rotary_base", "rope_theta", whole.get("rope_theta")),
    )
    for key, name, theirs in pairs:
        if theirs is not None:
            yield key, num_layers(p) if key == "num_layers" else p[key], name, theirs
    if "rope_scaling" in whole:
        scaling = whole["rope_scaling"] or {}
        yield "use_rope_scaling", p["use_rope_scaling"], "having rope_scaling", bool(scaling)
        if p["use_rope_scaling"] and "factor" in scaling:
            yield "rope_scaling_factor", p["rope_scaling_factor"], "rope_scaling.factor", scaling["factor"]
        for name, constant in _ROPE.items():
            if name in scaling:
                yield f"{name} of the scaling", constant, f"rope_scaling.{name}", scaling[name]


def _needed(p: Params, whole: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield what the description takes for granted, and whether it is so."""
    act = whole.get("hidden_act", "silu")
    yield f"hidden_act is {act}, and must be silu", act == "silu"
    for key, wanted in (("swiglu", True), ("normalization", "RMSNorm"), ("rotary_percent", 1.0)):
        yield f"{key} is {_shown(p[key])}, and must be {_shown(wanted)}", p[key] == wanted
    scheme = position_type(p)
    yield f"position_embedding_type is {scheme}, and must be rope", scheme == "rope"


def _shown(value: Any) -> str:
    return json.dumps(value).strip('"')
