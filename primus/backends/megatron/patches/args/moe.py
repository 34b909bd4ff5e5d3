"""Mixture of experts: which layers are sparse, and what routers, experts and dispatchers ask of one another."""

import math
from collections.abc import Iterator
from pathlib import Path

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule, Unreadable, or_list
from primus.backends.megatron.patches.args.architecture import ffn_hidden_size, nearest_divisors, num_layers
from primus.backends.megatron.patches.args.layer_list import layer_list
from primus.backends.megatron.patches.args.mamba import is_mamba
from primus.backends.megatron.patches.args.mamba import pattern as symbols

__all__ = [
    "DERIVATIONS",
    "RULES",
    "balancing",
    "capacity_factor",
    "coefficients",
    "expert_width",
    "forced_balance",
    "layers",
    "num_experts",
    "router_dtype",
    "soft_cap",
]

_DTYPES = {"fp32": "float32", "fp64": "float64"}
_LOSSES = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")


def num_experts(p: Params) -> int | None:
    """Return the experts of a sparse layer; 0 means none, as null does."""
    return p["num_experts"] or None


def layers(p: Params) -> tuple[int, ...]:
    """Return the numbers of the sparse layers."""
    if num_experts(p) is None:
        return ()
    if is_mamba(p):
        return tuple(number for number, symbol in enumerate(symbols(p)) if symbol == "E")
    pattern = _pattern(p)
    if isinstance(pattern, str):
        raise Unreadable("moe_layer_freq")
    return tuple(number for number, is_sparse in enumerate(pattern) if is_sparse)


def expert_width(p: Params) -> int | None:
    """Return the width of an expert; that of dense layers if none is said."""
    if num_experts(p) is None:
        return None
    width: int | None = p["moe_ffn_hidden_size"]
    return ffn_hidden_size(p) if width is None else width


def capacity_factor(p: Params) -> float | None:
    """Return the bound of an expert's share; a negative one is none."""
    factor: float | None = p["moe_expert_capacity_factor"]
    return None if factor is None or factor < 0 else factor


def router_dtype(p: Params) -> str | None:
    """Return the dtype under its whole name."""
    return None if p["moe_router_dtype"] is None else _DTYPES[p["moe_router_dtype"]]


def balancing(p: Params) -> list[str]:
    """Return the kinds of balancing."""
    kinds = p["moe_router_load_balancing_type"]
    return list(kinds) if isinstance(kinds, list) else [kinds]


def coefficients(p: Params) -> list[float]:
    """Return the weight of each kind; kinds without a loss have none."""
    given = p["moe_aux_loss_coeff"]
    return list(given) if isinstance(given, list) else [given]


def forced_balance(p: Params) -> str | None:
    """Return how the load is forced to be even; the plain router knows chance alone."""
    if not p["moe_router_force_load_balancing"]:
        return None
    return "uniform" if p["disable_primus_topk_router"] else str(p["moe_router_force_load_balancing_type"])


def soft_cap(p: Params) -> float | None:
    """Return the bound of router logits; the plain router has none, nor have numbers that are not positive."""
    cap: float | None = p["router_logit_softcapping"]
    return None if cap is None or cap <= 0 or p["disable_primus_topk_router"] else cap


def layer_pattern_is_understood(p: Params) -> Problems:
    """Every layer is dense or sparse."""
    if num_experts(p) is None or is_mamba(p):
        return
    pattern = _pattern(p)
    if isinstance(pattern, str):
        yield f"{p.where('moe_layer_freq')}: {pattern}"


def experts_have_a_layer(p: Params) -> Problems:
    """Experts that no layer has are not what anyone means."""
    if num_experts(p) is not None and not layers(p):
        key = "hybrid_override_pattern" if is_mamba(p) else "moe_layer_freq"
        yield f"{p.where(key)} gives no layer to {p.where('num_experts')}: name a sparse layer, or set num_experts to null."


def experts_are_divided_evenly(p: Params) -> Problems:
    """Ranks that share experts have equally many, and something to share."""
    experts, ranks = num_experts(p), p["expert_model_parallel_size"]
    if experts is None:
        if ranks > 1:
            yield f"{p.where('expert_model_parallel_size')} needs experts: set num_experts, or expert_model_parallel_size: 1."
    elif experts % ranks:
        nearest = or_list(nearest_divisors(experts, ranks))
        yield f"{p.where('num_experts')} is not divisible by {p.where('expert_model_parallel_size')}: use {nearest} ranks."


def expert_matrices_are_divided_evenly(p: Params) -> Problems:
    """Each rank that shares an expert has an equal part of its width."""
    width, ranks = expert_width(p), p["expert_tensor_parallel_size"] or p["tensor_model_parallel_size"]
    if width is not None and width % ranks:
        name = "moe_ffn_hidden_size" if p["moe_ffn_hidden_size"] is not None else "ffn_hidden_size"
        key = "expert_tensor_parallel_size" if p["expert_tensor_parallel_size"] else "tensor_model_parallel_size"
        yield f"{p.where(name)} is not divisible by {p.where(key)}: use a width that is, or fewer ranks for a matrix."


def experts_divide_the_world(p: Params) -> Problems:
    """The ranks are laid out a second time for experts, and the stages of both layouts are the same ranks."""
    tensor, pipeline = p["tensor_model_parallel_size"], p["pipeline_model_parallel_size"]
    dense = tensor * p["context_parallel_size"] * pipeline
    unit = (p["expert_tensor_parallel_size"] or tensor) * p["expert_model_parallel_size"] * pipeline
    if p.world_size % dense or unit == dense:
        return
    width = "tensor_model_parallel_size" if p["expert_tensor_parallel_size"] is None else "expert_tensor_parallel_size"
    keys = [key for key in (width, "expert_model_parallel_size", "pipeline_model_parallel_size") if p[key] != 1]
    product = " x ".join(p.where(key) for key in keys) + (f" = {unit}" if len(keys) > 1 else "")
    if p.world_size % unit:
        processes = "1 process" if p.world_size == 1 else f"{p.world_size} processes"
        unit = math.lcm(unit, dense)
        nearest = or_list([n for n in (p.world_size // unit * unit, (p.world_size // unit + 1) * unit) if n])
        yield f"the run has {processes}, no multiple of {product}: start {nearest} (--nproc-per-node), or change the degree."
    elif p["use_tp_pp_dp_mapping"] and pipeline > 1 and p["expert_model_parallel_size"] > 1:
        yield (
            f"{p.where('use_tp_pp_dp_mapping')} with {product} needs as many ranks for the experts of a stage as for its dense "
            f"parameters ({dense // pipeline}): choose such degrees, or set it to false."
        )


def biases_are_added_once(p: Params) -> Problems:
    """Ranks that share an expert would each add its last bias, and the shared expert hands its own to nobody."""
    if num_experts(p) is None or not p["add_bias_linear"]:
        return
    ranks = p["expert_tensor_parallel_size"] or p["tensor_model_parallel_size"]
    if ranks > 1:
        yield (
            f"{p.where('add_bias_linear')} with {p.where('num_experts')} needs expert_tensor_parallel_size: 1 (it is {ranks})."
        )
    if p["moe_shared_expert_intermediate_size"] is not None:
        yield (
            f"{p.where('add_bias_linear')} does not go with {p.where('moe_shared_expert_intermediate_size')}: set one of them "
            "to false or null."
        )


def tokens_are_split(p: Params) -> Problems:
    """Tensor-parallel ranks would all send the same tokens to experts."""
    if num_experts(p) is not None and p["tensor_model_parallel_size"] > 1 and not p["sequence_parallel"]:
        yield (
            f"{p.where('num_experts')} with {p.where('tensor_model_parallel_size')} needs sequence_parallel: true, so that "
            f"each rank sends its own tokens to experts ({p.where('sequence_parallel')})."
        )


def instances_divide_copies(p: Params) -> Problems:
    """Each optimizer instance holds the state of every expert."""
    instances = p["num_distributed_optimizer_instances"]
    if num_experts(p) is None or instances == 1:
        return
    tensor, pipeline = p["tensor_model_parallel_size"], p["pipeline_model_parallel_size"]
    unit = (p["expert_tensor_parallel_size"] or tensor) * p["expert_model_parallel_size"] * pipeline
    copies = p.world_size // unit
    if copies % instances:
        yield (
            f"{p.where('num_distributed_optimizer_instances')} does not divide the {copies} copies of an expert on "
            f"{p.world_size} ranks: use a divisor of {copies}."
        )


def choice_fits_experts(p: Params) -> Problems:
    """A token cannot visit more experts than there are, nor groups than there are."""
    experts, k = num_experts(p), p["moe_router_topk"]
    if experts is None:
        return
    if k > experts:
        yield f"{p.where('moe_router_topk')} is more than {p.where('num_experts')}: choose at most {experts}."
    groups, best = p["moe_router_num_groups"], p["moe_router_group_topk"]
    if best is None:
        return
    if groups is None:
        yield f"{p.where('moe_router_group_topk')} needs moe_router_num_groups: set it to a divisor of {experts}."
        return
    if experts % groups:
        nearest = or_list(nearest_divisors(experts, groups))
        yield f"{p.where('num_experts')} is not divisible by {p.where('moe_router_num_groups')}: use {nearest} groups."
    elif best > groups:
        yield f"{p.where('moe_router_group_topk')} is more than {p.where('moe_router_num_groups')}: choose at most {groups}."
    elif k > best * (experts // groups) or k < best:
        yield (
            f"{p.where('moe_router_topk')} experts cannot come from {p.where('moe_router_group_topk')} groups of "
            f"{experts // groups}: use {best} to {best * (experts // groups)} experts."
        )


def one_choice_learns(p: Params) -> Problems:
    """The softmax over one chosen logit is 1 and has no gradient."""
    is_softmax = p["moe_router_score_function"] == "softmax" and not p["moe_router_pre_softmax"]
    if num_experts(p) is not None and p["moe_router_topk"] == 1 and is_softmax and "sinkhorn" not in balancing(p):
        yield (
            f"{p.where('moe_router_topk')} with the softmax over the chosen experts gives every router a gradient of zero: "
            "set moe_router_pre_softmax: true."
        )


def bias_has_scores(p: Params) -> Problems:
    """The bias is added to scores between 0 and 1."""
    if num_experts(p) is not None and p["moe_router_enable_expert_bias"] and p["moe_router_score_function"] == "softmax":
        yield (
            f"{p.where('moe_router_enable_expert_bias')} moves scores between 0 and 1: set moe_router_score_function: sigmoid "
            f"({p.where('moe_router_score_function')})."
        )


def capacity_has_a_loss(p: Params) -> Problems:
    """Capacity goes with the kinds of balancing that leave the choice alone."""
    if num_experts(p) is None:
        return
    if capacity_factor(p) == 0:
        yield f"{p.where('moe_expert_capacity_factor')} drops every token: use 1.0 for an even share, or null for no cap."
    elif capacity_factor(p) is None:
        if p["moe_pad_expert_input_to_capacity"]:
            yield f"{p.where('moe_pad_expert_input_to_capacity')} needs moe_expert_capacity_factor: set it."
    elif not set(balancing(p)) <= set(_LOSSES):
        yield (
            f"{p.where('moe_expert_capacity_factor')} does not go with {p.where('moe_router_load_balancing_type')}: "
            f"use {or_list(_LOSSES)}."
        )


def balancing_is_consistent(p: Params) -> Problems:
    """Every loss has a weight, and sinkhorn, which evens out the choice itself, is alone."""
    if num_experts(p) is None:
        return
    kinds, weights = balancing(p), coefficients(p)
    if any(weight < 0 for weight in weights):
        yield f"{p.where('moe_aux_loss_coeff')} below 0 would drive tokens to few experts: use 0 or more."
    if len(kinds) != len(weights):
        yield (
            f"{p.where('moe_router_load_balancing_type')} and {p.where('moe_aux_loss_coeff')} differ in length: give each "
            "kind of balancing one weight."
        )
    elif len(kinds) > 1 and (len(set(kinds)) < len(kinds) or {"sinkhorn", "none"} & set(kinds)):
        losses = or_list([kind for kind in _LOSSES if kind != "none"])
        yield f"{p.where('moe_router_load_balancing_type')}: a list is of different losses ({losses})."
    elif kinds == ["sinkhorn"] and any(weights):
        yield f"{p.where('moe_aux_loss_coeff')} has no loss under {p.where('moe_router_load_balancing_type')}: set it to 0."


def shared_expert_is_possible(p: Params) -> Problems:
    """It has a width, no biases, and overlaps with ways that leave time."""
    if num_experts(p) is None:
        return
    width, kind = p["moe_shared_expert_intermediate_size"], p["moe_token_dispatcher_type"]
    if width is not None and width % p["tensor_model_parallel_size"]:
        yield (
            f"{p.where('moe_shared_expert_intermediate_size')} is not divisible by {p.where('tensor_model_parallel_size')}: "
            "use a width that is."
        )
    if p["moe_shared_expert_overlap"] and kind == "allgather":
        yield (
            f"{p.where('moe_shared_expert_overlap')} does not go with {p.where('moe_token_dispatcher_type')}: use alltoall "
            "or flex."
        )


def dispatcher_has_ranks(p: Params) -> Problems:
    """One of them sends to ranks."""
    kind = p["moe_token_dispatcher_type"]
    sharers = p["expert_model_parallel_size"] * (p["expert_tensor_parallel_size"] or p["tensor_model_parallel_size"])
    if kind == "flex" and num_experts(p) is not None and sharers == 1:
        yield (
            f"{p.where('moe_token_dispatcher_type')} needs ranks that share experts: set expert_model_parallel_size, or use "
            "alltoall."
        )


def sequences_stay_whole(p: Params) -> Problems:
    """Balance and capacity are those of whole sequences."""
    if num_experts(p) is not None and p["num_seq_splits"] > 1:
        yield (
            f"{p.where('num_seq_splits')} does not go with {p.where('num_experts')}: routers look at whole sequences; set it "
            "to 1."
        )


def steps_wait(p: Params) -> Problems:
    """What experts got in a step that is taken back cannot be told."""
    if num_experts(p) is not None and p["enable_optimizer_post_validation"]:
        yield f"{p.where('enable_optimizer_post_validation')} does not go with {p.where('num_experts')}: set it to false."


def experts_come_from_a_dense_model(p: Params) -> Problems:
    """There is a dense checkpoint, its layers can be cut into experts, and a second start will find the first one's work."""
    if num_experts(p) is None or not p["moe_use_upcycling"]:
        return
    here, experts, width, dense = p.where("moe_use_upcycling"), num_experts(p), expert_width(p), ffn_hidden_size(p)
    if p["load"] is None and p["pretrained_checkpoint"] is None:
        yield f"{here} needs the checkpoint of a dense model: set load."
    if p["save"] is None:
        yield f"{here} needs save, so that a later start goes on from the sparse model: set save."
    elif not p["auto_continue_train"] and any(Path(p.output_path(p["save"])).glob("iter_*")):
        yield (
            f"{here} would begin anew beside the checkpoints in {p.where('save')}: set auto_continue_train: true to go on from "
            "them, or choose another folder."
        )
    if p["moe_shared_expert_intermediate_size"] is not None:
        yield f"{here} makes no shared expert ({p.where('moe_shared_expert_intermediate_size')}): set it to null."
    if width is not None and dense % width:
        yield f"{here} cuts layers of width {dense} (ffn_hidden_size) into experts of {width}: use a width that divides it."
    elif width is not None and experts is not None and experts % (dense // width):
        yield f"{here} makes {dense // width} experts of a copy of a layer: use a multiple of that ({p.where('num_experts')})."


def a_dense_model_gives_its_weights_alone(p: Params) -> Iterator[Rewrite]:
    """Its optimizer state is that of other tensors."""
    if num_experts(p) is not None and p["moe_use_upcycling"] and p["load"] and not p["finetune"]:
        yield Rewrite(key="finetune", value=True, reason=f"{p.where('moe_use_upcycling')} takes a dense model's weights alone")


DERIVATIONS: tuple[Derivation, ...] = (a_dense_model_gives_its_weights_alone,)
RULES: tuple[Rule, ...] = (
    experts_come_from_a_dense_model,
    layer_pattern_is_understood,
    experts_have_a_layer,
    experts_are_divided_evenly,
    expert_matrices_are_divided_evenly,
    experts_divide_the_world,
    biases_are_added_once,
    tokens_are_split,
    instances_divide_copies,
    choice_fits_experts,
    one_choice_learns,
    bias_has_scores,
    capacity_has_a_loss,
    balancing_is_consistent,
    shared_expert_is_possible,
    dispatcher_has_ranks,
    sequences_stay_whole,
    steps_wait,
)


def _pattern(p: Params) -> list[int] | str:
    """Return 0 or 1 for every layer, or what is wrong."""
    return layer_list(
        p["moe_layer_freq"],
        num_layers(p),
        rhythm=lambda number, every: number % every == 0,
        meaning="0 (dense) or 1 (sparse)",
        example="([0]*3+[1]*58)",
    )
