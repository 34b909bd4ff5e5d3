"""How tokens reach experts: what the dispatchers are called, and when two microbatches may take turns."""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule
from primus.backends.megatron.patches.args.fsdp import shards

__all__ = ["DERIVATIONS", "RULES"]


def deepep_is_flex(p: Params) -> Iterator[Rewrite]:
    """Turbo's switch for DeepEP chooses the dispatcher that sends a token once to a rank."""
    if _deepep_meets_another(p) and not _are_both_written(p):
        yield Rewrite(
            key="moe_token_dispatcher_type",
            value="flex",
            reason="use_turbo_deepep is true",
            notice=f"{p.where('moe_token_dispatcher_type')} gives way to flex: {p.where('use_turbo_deepep')}.",
        )


def _deepep_meets_another(p: Params) -> bool:
    is_on = p["enable_primus_turbo"] and p["use_turbo_deepep"] and p["num_experts"]
    return bool(is_on and p["moe_token_dispatcher_type"] != "flex")


def _are_both_written(p: Params) -> bool:
    return p.is_chosen("moe_token_dispatcher_type") and p.is_chosen("use_turbo_deepep")


def deepep_has_its_dispatcher(p: Params) -> Problems:
    """Two keys that the user wrote do not overrule one another."""
    if _deepep_meets_another(p) and _are_both_written(p):
        yield (
            f"{p.where('use_turbo_deepep')} and {p.where('moe_token_dispatcher_type')} exclude each other: set "
            "moe_token_dispatcher_type: flex, or use_turbo_deepep: false."
        )


def turns_are_possible(p: Params) -> Problems:
    """A backward and a forward that take turns need tokens that travel, and nothing that only one of them can hold."""
    key = "overlap_moe_expert_parallel_comm"
    if not (p[key] and p["num_experts"]):
        return
    if p["moe_token_dispatcher_type"] == "allgather":
        yield f"{p.where(key)} does not go with {p.where('moe_token_dispatcher_type')}: use alltoall or flex."
    if p["pipeline_model_parallel_size"] > 1:
        yield (
            f"{p.where(key)} is not implemented yet with {p.where('pipeline_model_parallel_size')}: set one of them off; "
            "schedules of pipelines have their own order."
        )
    for other in ("moe_layer_recompute", "recompute_granularity"):
        if p[other] and p[other] != "selective":
            yield (
                f"{p.where(key)} does not go with {p.where(other)}: what is computed again cannot let others pass; set one of "
                "them off."
            )
    by = "use_torch_fsdp2" if p["use_torch_fsdp2"] else "data_parallel_sharding_strategy"
    if p["use_torch_fsdp2"] or shards(p, "optim_grads_params"):
        yield (
            f"{p.where(key)} does not go with sharded weights ({p.where(by)}): use data_parallel_sharding_strategy: "
            "optim_grads with use_megatron_fsdp: true."
        )


def fsdp2_divides_what_all_hold(p: Params) -> Problems:
    """Torch's sharding divides parameters over ranks that hold the same ones."""
    tensor = p["tensor_model_parallel_size"]
    is_apart = p["expert_model_parallel_size"] > 1 or (p["expert_tensor_parallel_size"] or tensor) != tensor
    if p["use_torch_fsdp2"] and p["num_experts"] and is_apart:
        key = "expert_model_parallel_size" if p["expert_model_parallel_size"] > 1 else "expert_tensor_parallel_size"
        yield (
            f"{p.where('use_torch_fsdp2')} does not go with {p.where(key)}: use_megatron_fsdp: true with "
            "data_parallel_sharding_strategy: optim_grads_params divides alike, experts too."
        )


DERIVATIONS: tuple[Derivation, ...] = (deepep_is_flex,)
RULES: tuple[Rule, ...] = (deepep_has_its_dispatcher, turns_are_possible, fsdp2_divides_what_all_hold)
