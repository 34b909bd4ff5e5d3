"""Recomputation: which combinations of its keys mean something, and which layers they name."""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule
from primus.backends.megatron.patches.args.architecture import num_layers
from primus.backends.megatron.patches.args.positions import length_key, seq_length

__all__ = ["DERIVATIONS", "RULES", "layer_ids"]

_OF_FULL = ("recompute_method", "recompute_num_layers", "recompute_layer_ids")


def layer_ids(p: Params) -> tuple[int, ...]:
    """Return the layers of `recompute_layer_ids`, each once; a text that is no list of integers gives none."""
    given = p["recompute_layer_ids"] or ()
    words = given.split(",") if isinstance(given, str) else given
    try:
        return tuple(sorted({int(word) for word in words}))
    except ValueError:
        return ()


def recompute_activations_is_selective(p: Params) -> Iterator[Rewrite]:
    """The short form stands for the granularity."""
    if p["recompute_activations"] and p["recompute_granularity"] is None:
        yield Rewrite(key="recompute_granularity", value="selective", reason="recompute_activations is true", notice=None)


def short_and_long_form_agree(p: Params) -> Problems:
    """The short form means `selective`."""
    if p["recompute_activations"] and p["recompute_granularity"] == "full":
        yield f"{p.where('recompute_activations')} means selective, but {p.where('recompute_granularity')}: drop one of them."


def only_full_recomputation_chooses_layers(p: Params) -> Problems:
    """Without `full` the keys that choose layers would say nothing."""
    if p["recompute_granularity"] == "full":
        return
    for key in (*_OF_FULL, "distribute_saved_activations"):
        if p[key]:
            yield f"{p.where(key)} needs recompute_granularity: full (it is {p.where('recompute_granularity')})."


def full_recomputation_says_which_layers(p: Params) -> Problems:
    """By a method with a number, or by name."""
    if p["recompute_granularity"] != "full":
        return
    method, named = p["recompute_method"], p["recompute_layer_ids"] is not None
    if method is None and not named:
        yield f"{p.where('recompute_granularity')} needs recompute_method (uniform or block) or recompute_layer_ids."
    if method is not None and named:
        yield f"{p.where('recompute_layer_ids')} and {p.where('recompute_method')} exclude each other: drop one of them."
    if method is not None and p["recompute_num_layers"] is None:
        unit = "layers of a group" if method == "uniform" else "layers of each stage"
        yield f"{p.where('recompute_method')} needs recompute_num_layers: the {unit}."
    if method is None and p["recompute_num_layers"] is not None:
        yield f"{p.where('recompute_num_layers')} needs a recompute_method."


def recomputed_layers_exist(p: Params) -> Problems:
    """Layers are numbered from 0 over the whole model; prediction layers come last."""
    if p["recompute_layer_ids"] is None or p["recompute_granularity"] != "full":
        return
    ids, depth = layer_ids(p), num_layers(p) + (p["mtp_num_layers"] or 0)
    if not ids or ids[0] < 0 or ids[-1] >= depth:
        yield f"{p.where('recompute_layer_ids')} must list layers from 0 to {depth - 1}, such as [0, 2] or 0,2."


def saved_activations_can_be_distributed(p: Params) -> Problems:
    """A slice of the input each: of something whole, between several ranks, in equal parts."""
    if not p["distribute_saved_activations"] or p["recompute_granularity"] != "full":
        return
    ranks, where = p["tensor_model_parallel_size"], p.where("distribute_saved_activations")
    if ranks == 1:
        yield f"{where} needs tensor parallelism, but {p.where('tensor_model_parallel_size')}."
    elif p["sequence_parallel"]:
        yield f"{where}: with {p.where('sequence_parallel')} each rank keeps a slice anyway; drop one of them."
    elif seq_length(p) % ranks:
        yield f"{where} needs a {length_key(p)} that {p.where('tensor_model_parallel_size')} divides: {seq_length(p)} is not."
    if p["recompute_method"] is None:
        yield f"{where} needs a recompute_method."


DERIVATIONS: tuple[Derivation, ...] = (recompute_activations_is_selective,)
RULES: tuple[Rule, ...] = (
    short_and_long_form_agree,
    only_full_recomputation_chooses_layers,
    full_recomputation_says_which_layers,
    recomputed_layers_exist,
    saved_activations_can_be_distributed,
)
