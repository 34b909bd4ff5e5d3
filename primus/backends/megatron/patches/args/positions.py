"""Which position scheme runs and how long a sequence may be.

`position_embedding_type` decides, except that `use_rotary_position_embeddings: true` means `rope`. `add_position_embedding`
adds nothing by itself; only a user who sets it to false while a learned table is chosen has contradicted himself.
"""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.architecture import kv_channels, num_layers
from primus.backends.megatron.patches.args.layer_list import layer_list

__all__ = [
    "RULES",
    "length_key",
    "llama3_original_context",
    "max_position_embeddings",
    "position_type",
    "scheme_key",
    "seq_length",
    "unrotated_layers",
    "yarn_original_context",
]

_ROTARY = ("rope", "yarn")
_YARN_CONTEXT = 4096
_LLAMA3_CONTEXT = 8192
"""Context lengths of the original training where `original_max_position_embeddings` is null."""


def position_type(p: Params) -> str:
    """Return the scheme; latent attention has its own key for it."""
    if p["multi_latent_attention"]:
        return str(p["rope_type"] or "yarn")
    return "rope" if p["use_rotary_position_embeddings"] else str(p["position_embedding_type"])


def scheme_key(p: Params) -> str:
    """Return the key that chose the scheme."""
    if p["multi_latent_attention"]:
        return "rope_type"
    return "use_rotary_position_embeddings" if p["use_rotary_position_embeddings"] else "position_embedding_type"


def length_key(p: Params) -> str:
    """Return the key that gives the sequence length; `encoder_seq_length` is the other name of `seq_length`."""
    return "encoder_seq_length" if p["seq_length"] is None else "seq_length"


def seq_length(p: Params) -> int:
    """Return the tokens of a sequence."""
    return int(p.required(length_key(p)))


def max_position_embeddings(p: Params) -> int:
    """Return the longest sequence that the positions cover."""
    return int(p.required("max_position_embeddings"))


def yarn_original_context(p: Params) -> int:
    """Return the context length of the original training."""
    return int(p["original_max_position_embeddings"] or _YARN_CONTEXT)


def llama3_original_context(p: Params) -> int:
    """Return the context length of the original training for Llama-3 scaling."""
    return int(p["original_max_position_embeddings"] or _LLAMA3_CONTEXT)


def unrotated_layers(p: Params) -> tuple[int, ...]:
    """Return the numbers of the layers that rotate nothing although the others do."""
    listed = _unrotated(p)
    if isinstance(listed, str):
        raise Unreadable("no_rope_freq")
    return tuple(number for number, is_unrotated in enumerate(listed) if is_unrotated)


def length_is_given_once(p: Params) -> Problems:
    """`seq_length` and its alias exclude each other."""
    length = p[length_key(p)]
    if p["seq_length"] is not None and p["encoder_seq_length"] is not None:
        yield f"{p.where('seq_length')} and {p.where('encoder_seq_length')} are the same thing: set encoder_seq_length: null."
    elif length is None:
        yield f"seq_length is null ({p.source('seq_length')}): set the tokens of a sequence."


def positions_cover_sequence(p: Params) -> Problems:
    """No token stands beyond the last position."""
    key, length, limit = length_key(p), seq_length(p), p["max_position_embeddings"]
    if limit is None:
        yield (
            f"max_position_embeddings is null ({p.source('max_position_embeddings')}): set the longest sequence of the model, "
            f"at least {p.where(key)}; max_position_embeddings: {length} will do."
        )
    elif limit < length:
        yield (
            f"{p.where(key)} is longer than {p.where('max_position_embeddings')}: "
            f"set max_position_embeddings to at least {length}, or {key} to at most {limit}."
        )


def learned_table_is_wanted(p: Params) -> Problems:
    """A user who declines position embeddings chooses another scheme."""
    if position_type(p) == "learned_absolute" and p.is_chosen("add_position_embedding") and not p["add_position_embedding"]:
        yield (
            f"{p.where('add_position_embedding')} contradicts {p.where('position_embedding_type')}: "
            "choose position_embedding_type rope, yarn or none, or drop add_position_embedding."
        )


def rotary_settings_are_possible(p: Params) -> Problems:
    """A rotation turns pairs of channels; YaRN asks which of them turn how often, which a base of 1 does not tell apart."""
    if position_type(p) not in _ROTARY:
        return
    for key in ("rotary_seq_len_interpolation_factor", "rope_scaling_factor", "rotary_scaling_factor"):
        if p[key] == 0:
            yield f"{p.where(key)} must be above 0."
    if position_type(p) == "yarn" and p["rotary_base"] <= 1:
        yield f"{p.where('rotary_base')} must be above 1 with {_yarn(p)}; 10000 is usual."
    if p["multi_latent_attention"]:
        return
    rotated = int(kv_channels(p) * p["rotary_percent"])
    if rotated < 2 or rotated % 2:
        yield (
            f"{position_type(p)} turns pairs of channels, but {p.where('rotary_percent')} of {kv_channels(p)} channels a head "
            f"is {rotated}: change rotary_percent, kv_channels or num_attention_heads."
        )


def rotary_variants_match_scheme(p: Params) -> Problems:
    """Llama-3 scaling belongs to plain rope, and yarn pairs the halves of a head."""
    if position_type(p) == "yarn" and p["rotary_interleaved"] and not p["multi_latent_attention"]:
        yield f"{p.where('rotary_interleaved')} is not possible with {p.where('position_embedding_type')}: set it to false."
    if p["use_rope_scaling"] and position_type(p) != "rope":
        key = "rope_type" if p["multi_latent_attention"] else "position_embedding_type"
        yield f"{p.where('use_rope_scaling')} needs {key} rope (it is {p.where(key)})."


def unrotated_layers_are_understood(p: Params) -> Problems:
    """Some layers rotate nothing where the others rotate heads of their own."""
    listed = _unrotated(p)
    if isinstance(listed, str):
        yield f"{p.where('no_rope_freq')}: {listed}"
    elif p["no_rope_freq"] is None:
        return
    elif p["multi_latent_attention"]:
        yield f"{p.where('no_rope_freq')} is not possible with {p.where('multi_latent_attention')}: its keys share a rotation."
    elif position_type(p) not in _ROTARY:
        yield f"{p.where('no_rope_freq')} needs position_embedding_type rope (it is {p.where(scheme_key(p))})."


RULES: tuple[Rule, ...] = (
    unrotated_layers_are_understood,
    length_is_given_once,
    positions_cover_sequence,
    learned_table_is_wanted,
    rotary_settings_are_possible,
    rotary_variants_match_scheme,
)


def _unrotated(p: Params) -> list[int] | str:
    if p["no_rope_freq"] is None:
        return []
    return layer_list(
        p["no_rope_freq"],
        num_layers(p),
        rhythm=lambda number, every: (number + 1) % every == 0,
        meaning="0 (rotates) or 1 (rotates nothing)",
        example="([0]*3+[1])*12",
    )


def _yarn(p: Params) -> str:
    """Say where YaRN comes from: latent attention has it unless told otherwise."""
    is_implied = p["multi_latent_attention"] and p["rope_type"] is None
    return f"YaRN, which {p.where('multi_latent_attention')} implies" if is_implied else p.where(scheme_key(p))
