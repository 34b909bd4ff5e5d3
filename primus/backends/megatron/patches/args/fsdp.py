"""Fully sharded data parallelism: which spelling switches it on, what the strategy decides, and what excludes it."""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES", "builds_on_meta", "is_fsdp", "shards"]


def is_fsdp(p: Params) -> bool:
    """Return whether either spelling asks for it."""
    return bool(p["use_megatron_fsdp"] or p["use_custom_fsdp"])


def shards(p: Params, *strategies: str) -> bool:
    """Return whether it is on with one of these strategies."""
    return is_fsdp(p) and p["data_parallel_sharding_strategy"] in strategies


def builds_on_meta(p: Params) -> bool:
    """Return whether weights are built without memory; an evaluation has nobody who would fill them unit by unit."""
    return bool(p["init_model_with_meta_device"] and not p["skip_train"])


def strategy_decides_the_optimizer(p: Params) -> Iterator[Rewrite]:
    """Every strategy but `no_shard` shards the optimizer."""
    wanted = p["data_parallel_sharding_strategy"] != "no_shard"
    if is_fsdp(p) and p["use_distributed_optimizer"] != wanted:
        reason = p.where("data_parallel_sharding_strategy")
        notice = f"{p.where('use_distributed_optimizer')} becomes {str(wanted).lower()}: {reason}."
        is_said = p.is_chosen("use_distributed_optimizer")
        yield Rewrite(key="use_distributed_optimizer", value=wanted, reason=reason, notice=notice if is_said else None)


def meta_device_needs_shards(p: Params) -> Problems:
    """Without shards a rank holds the whole model in any case."""
    if p["init_model_with_meta_device"] and not shards(p, "optim", "optim_grads", "optim_grads_params"):
        spelling = "use_megatron_fsdp" if not is_fsdp(p) else "data_parallel_sharding_strategy"
        yield (
            f"{p.where('init_model_with_meta_device')} fills weights shard by shard, but {p.where(spelling)}: set "
            "use_megatron_fsdp: true and data_parallel_sharding_strategy: optim, optim_grads or optim_grads_params."
        )


def sharded_weights_have_no_replicas(p: Params) -> Problems:
    """Weights that no rank holds whole cannot be compared between ranks."""
    if p["check_weight_hash_across_dp_replicas_interval"] is not None and shards(p, "optim_grads_params"):
        yield (
            f"{p.where('check_weight_hash_across_dp_replicas_interval')} compares whole weights, but "
            f"{p.where('data_parallel_sharding_strategy')} leaves a rank its shard: set the first to null, or another strategy."
        )


DERIVATIONS: tuple[Derivation, ...] = (strategy_decides_the_optimizer,)
RULES: tuple[Rule, ...] = (meta_device_needs_shards, sharded_weights_have_no_replicas)
