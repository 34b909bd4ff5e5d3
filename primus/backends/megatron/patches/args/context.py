"""Context parallelism: how a sequence divides over its ranks, and what each way of communication asks for."""

from primus.backends.megatron.params import Params, Problems, Rule
from primus.backends.megatron.patches.args.architecture import num_layers, num_query_groups
from primus.backends.megatron.patches.args.positions import length_key, seq_length

__all__ = ["RULES", "communication", "levels"]

_RANKS, _WAY, _SIZES = "context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes"


def communication(p: Params) -> tuple[str, ...]:
    """Return how attention reaches the other ranks' positions: one way, or one for each layer."""
    given = [p[_WAY]] if isinstance(p[_WAY], str) else p[_WAY]
    return tuple("allgather" if way == "all_gather" else way for way in given)


def levels(p: Params) -> tuple[int, ...] | None:
    """Return the sizes of exchange and ring; None where nothing is hierarchical."""
    return tuple(p[_SIZES]) if p[_SIZES] is not None and p[_RANKS] > 1 else None


def sequence_divides_over_context(p: Params) -> Problems:
    """Each rank holds two equal pieces of a sequence, and tensor-parallel ranks equal slices of them."""
    ranks = p[_RANKS]
    if ranks == 1:
        return
    if seq_length(p) % (2 * ranks):
        yield f"{p.where(length_key(p))} must be a multiple of twice {p.where(_RANKS)}: each rank holds two pieces."
    elif p["sequence_parallel"] and seq_length(p) // ranks % p["tensor_model_parallel_size"]:
        yield (
            f"{p.where(length_key(p))} over {p.where(_RANKS)} leaves {seq_length(p) // ranks} positions, which "
            f"{p.where('tensor_model_parallel_size')} does not divide; change one, or set sequence_parallel: false."
        )


def every_layer_has_a_way(p: Params) -> Problems:
    """A list has an entry for each layer."""
    if p[_RANKS] > 1 and isinstance(p[_WAY], list) and len(p[_WAY]) not in (1, num_layers(p)):
        yield f"{p.where(_WAY)} must be one way, or a list with one for each of the {num_layers(p)} layers."


def levels_make_up_the_ranks(p: Params) -> Problems:
    """Exchange within groups, a ring between them."""
    needs = p[_RANKS] > 1 and "a2a+p2p" in communication(p)
    if p[_SIZES] is None:
        if needs:
            yield f"{p.where(_WAY)} needs {_SIZES}: two numbers whose product is context_parallel_size {p[_RANKS]}."
        return
    sizes = p[_SIZES]
    if p[_RANKS] > 1 and (len(sizes) != 2 or min(sizes) < 1 or sizes[0] * sizes[1] != p[_RANKS]):
        yield f"{p.where(_SIZES)} must be two numbers whose product is {p.where(_RANKS)}."


def heads_can_be_exchanged(p: Params) -> Problems:
    """Each rank of an exchange takes whole heads, and whole key/value heads."""
    ranks = p[_RANKS]
    if ranks == 1:
        return
    ways, tensor = communication(p), p["tensor_model_parallel_size"]
    sizes = [ranks] if "a2a" in ways else []
    if "a2a+p2p" in ways and p[_SIZES]:
        sizes.append(p[_SIZES][0])
    heads = {"num_attention_heads": p.required("num_attention_heads"), "num_query_groups": num_query_groups(p)}
    for size in sizes:
        for key, number in heads.items():
            if number % (tensor * size):
                yield (
                    f"{p.where(_WAY)} exchanges heads between {size} ranks: {key} {number} must be a multiple of "
                    f"tensor_model_parallel_size {tensor} x {size}; use p2p or allgather, or other sizes."
                )


def context_attention_is_plain(p: Params) -> Problems:
    """What the divided attention does not know."""
    if p[_RANKS] == 1:
        return
    if p["apply_query_key_layer_scaling"]:
        yield f"{p.where('apply_query_key_layer_scaling')} is not implemented yet with {p.where(_RANKS)}: set it to false."


RULES: tuple[Rule, ...] = (
    sequence_divides_over_context,
    every_layer_has_a_way,
    levels_make_up_the_ranks,
    heads_can_be_exchanged,
    context_attention_is_plain,
)
