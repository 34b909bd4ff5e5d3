"""Fully sharded data parallelism: which spelling switches it on, what the strategy decides, and what excludes it."""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES", "builds_on_meta", "is_fsdp", "shards"]

_EXCLUDED = {
    "use_megatron_fsdp": "each shards in its own way; keep one of them",
    "use_custom_fsdp": "each shards in its own way; keep one of them",
    "use_distributed_optimizer": "fully_shard divides the optimizer's state itself; set it to false",
    "gradient_accumulation_fusion": "fully_shard takes weight gradients from autograd; set it to false",
    "fp16": "gradients that overflowed would be summed before anyone looks; use bf16: true",
}
"""Keys that `use_torch_fsdp2` excludes where they are on, with the reason and what to do; the presets' own give way."""


def is_fsdp(p: Params) -> bool:
    """Return whether either spelling asks for it."""
    return bool(p["use_megatron_fsdp"] or p["use_custom_fsdp"])


def shards(p: Params, *strategies: str) -> bool:
    """Return whether it is on with one of these strategies."""
    return is_fsdp(p) and p["data_parallel_sharding_strategy"] in strategies


def builds_on_meta(p: Params) -> bool:
    """Return whether weights are built without memory; an evaluation has nobody who would fill them unit by unit."""
    return bool(p["init_model_with_meta_device"] and not p["skip_train"])


def fsdp2_lays_the_preset_optimizer_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's `use_distributed_optimizer: true` gives way to the user's `use_torch_fsdp2: true`."""
    key = "use_distributed_optimizer"
    if p["use_torch_fsdp2"] and p[key] and p.is_preset(key):
        notice = f"{p.where(key)} is laid aside: {p.where('use_torch_fsdp2')} divides the optimizer's state itself."
        yield Rewrite(key=key, value=False, reason="use_torch_fsdp2 is true", notice=notice)


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
    if not p["init_model_with_meta_device"] or p["use_torch_fsdp2"]:
        return
    if not shards(p, "optim", "optim_grads", "optim_grads_params"):
        spelling = "use_megatron_fsdp" if not is_fsdp(p) else "data_parallel_sharding_strategy"
        yield (
            f"{p.where('init_model_with_meta_device')} fills weights shard by shard, but {p.where(spelling)}: set "
            "use_megatron_fsdp: true and data_parallel_sharding_strategy: optim, optim_grads or optim_grads_params, "
            "or use_torch_fsdp2: true."
        )


def sharded_weights_have_no_replicas(p: Params) -> Problems:
    """Weights that no rank holds whole cannot be compared between ranks."""
    if p["check_weight_hash_across_dp_replicas_interval"] is None:
        return
    if p["use_torch_fsdp2"] or shards(p, "optim_grads_params"):
        spelling = "use_torch_fsdp2" if p["use_torch_fsdp2"] else "data_parallel_sharding_strategy"
        other = "false" if p["use_torch_fsdp2"] else "another strategy"
        yield (
            f"{p.where('check_weight_hash_across_dp_replicas_interval')} compares whole weights, but "
            f"{p.where(spelling)} leaves a rank its shard: set the first to null, or the second to {other}."
        )


def fsdp2_stands_alone(p: Params) -> Problems:
    """torch's `fully_shard` has weights, gradients and optimizer state to itself."""
    if not p["use_torch_fsdp2"]:
        return
    fsdp2 = p.where("use_torch_fsdp2")
    for key, reason in _EXCLUDED.items():
        if p[key] and (p.is_chosen(key) or key == "fp16"):
            yield f"{fsdp2} excludes {p.where(key)}: {reason}."
    if p["pipeline_model_parallel_size"] > 1:
        yield (
            f"{fsdp2} needs pipeline_model_parallel_size: 1 (it is {p.where('pipeline_model_parallel_size')}): a stage's "
            "weights would be gathered again for each microbatch in flight."
        )
    if not p["untie_embeddings_and_output_weights"]:
        yield (
            f"{fsdp2} needs untie_embeddings_and_output_weights: true (it is "
            f"{p.where('untie_embeddings_and_output_weights')}): fully_shard gathers embedding and output layer apart, "
            "so they cannot share a weight."
        )
    if p["use_sink_attention"] and p["bf16"]:
        yield (
            f"{fsdp2} excludes {p.where('use_sink_attention')} with {p.where('bf16')}: fully_shard gathers the weights of a "
            "layer in one dtype, and sinks are in fp32; use_megatron_fsdp: true with data_parallel_sharding_strategy: "
            "optim_grads_params divides both."
        )


DERIVATIONS: tuple[Derivation, ...] = (fsdp2_lays_the_preset_optimizer_aside, strategy_decides_the_optimizer)
RULES: tuple[Rule, ...] = (fsdp2_stands_alone, meta_device_needs_shards, sharded_weights_have_no_replicas)
