"""Flat values to `ConfigContainer`: a field that one key decides gets its value as it is, the other fields are computed here.

`to_container` and `sources` are the names to use. `COMPUTED` maps a container path to the function that gives its value; every
other path has exactly one live key whose `target` it is.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from primus.backends.megatron.params import Params
from primus.backends.megatron.patches.args import (
    architecture,
    attention,
    batch,
    blocks,
    context,
    data,
    duration,
    fsdp,
    groups,
    logging,
    mamba,
    moe,
    offload,
    pipeline,
    positions,
    precision,
    recompute,
    schedule,
    tp_overlap,
    turbo,
    zero_bubble,
)
from primus.backends.megatron.patches.args.tokenizer import SIZED, embedding_rows, tokenizer_model
from primus.core.keys import Key
from primus.engine.config import ConfigContainer
from primus.engine.config.serialize import from_dict, to_dict

__all__ = ["COMPUTED", "sources", "targets", "to_container"]

Keys = Mapping[str, Key]
Quantity = Callable[[Params], Any]


def to_container(p: Params, keys: Keys) -> ConfigContainer:
    """Return the container of checked values."""
    tree: dict[str, Any] = {"run": to_dict(p.run)}
    for name, key in keys.items():
        for path in targets(key):
            if path not in COMPUTED and p[name] is not None:
                _put(tree, path, p[name])
    for path, quantity in COMPUTED.items():
        value = quantity(p)
        _put(tree, path, to_dict(value) if dataclasses.is_dataclass(value) else value)
    return cast(ConfigContainer, from_dict(tree))


def sources(config: ConfigContainer, p: Params, keys: Keys) -> dict[str, str]:
    """Return where the value of a container path was set, for every path that the user set or that is not at its default."""
    deciding: dict[str, list[str]] = {}
    for name, key in keys.items():
        for path in targets(key):
            deciding.setdefault(path, []).append(name)
    return {
        path: _note(p, names, _at(config, path))
        for path, names in deciding.items()
        if not all(map(p.is_preset, names)) or not _is_default(config, path)
    }


def targets(key: Key) -> tuple[str, ...]:
    """Return the container paths that a live key decides."""
    if key.status != "live" or not key.target:
        return ()
    return tuple(path.strip() for path in key.target.split(","))


def _note(p: Params, names: list[str], value: Any) -> str:
    """Name those of the deciding keys that the user set or that are on; where they leave the value open, it was derived."""
    said = [name for name in names if not p.is_preset(name)] or [name for name in names if p[name]] or names[:1]
    if value is not None and all(p[name] is None for name in said):
        return f"derived: {', '.join(p.where(name) for name in said)}"
    return ", ".join(f"{p.source(name)} ({name})" for name in said)


def _is_default(config: ConfigContainer, path: str) -> bool:
    parent, _, leaf = path.rpartition(".")
    (field,) = (field for field in dataclasses.fields(_at(config, parent)) if field.name == leaf)
    return bool(_at(config, path) == field.default)


def _at(config: ConfigContainer, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), cast(Any, config))


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def _input(key: str) -> Quantity:
    return lambda p: None if p[key] is None else p.input_path(p[key])


def _output(key: str) -> Quantity:
    return lambda p: None if p[key] is None else p.output_path(p[key])


def _backend(p: Params) -> str:
    """`use_flash_attn` is a preference that an explicit backend outweighs."""
    return "flash" if p["attention_backend"] == "auto" and p["use_flash_attn"] else str(p["attention_backend"])


_TRAIN: dict[str, Quantity] = {
    "train.global_batch_size": batch.global_batch_size,
    "train.rampup_batch_size": batch.rampup,
    "train.train_iters": duration.train_iters,
}
_MODEL: dict[str, Quantity] = {
    "model.num_layers": architecture.num_layers,
    "model.ffn_hidden_size": architecture.ffn_hidden_size,
    "model.seq_length": positions.seq_length,
    "model.vocab_size": embedding_rows,
    "model.activation": architecture.activation,
    "model.tie_embeddings": lambda p: not p["untie_embeddings_and_output_weights"],
    "model.attention.num_query_groups": architecture.num_query_groups,
    "model.attention.kv_channels": architecture.kv_channels,
    "model.attention.add_qkv_bias": lambda p: p["add_qkv_bias"] or p["add_bias_linear"],
    "model.final_logit_softcapping": lambda p: attention.positive(p, "final_logit_softcapping"),
    "model.attention.soft_cap": lambda p: attention.positive(p, "attn_logit_softcapping"),
    "model.attention.window": attention.window,
    "model.attention.full_layers": attention.full_layers,
    "model.attention.qk_norm": architecture.qk_norm,
    "model.attention.backend": _backend,
    "model.attention.softmax_in_fp32": lambda p: p["attention_softmax_in_fp32"] or p["apply_query_key_layer_scaling"],
    "model.fusion.attention": turbo.wanted("use_turbo_attention"),
    "model.fusion.rms_norm": turbo.wanted("use_turbo_rms_norm"),
    "model.fusion.weighted_activation": turbo.wanted("use_turbo_fused_act_with_probs"),
    "model.fusion.grouped_gemm": turbo.wanted("use_turbo_grouped_gemm"),
    "model.blocks.mixing": blocks.mixing,
    "model.blocks.feed_forward": blocks.feed_forward,
    "model.blocks.ffn_hidden_size": blocks.widths,
    "model.init.additions_per_layer": mamba.additions_per_layer,
    "model.mamba.num_heads": mamba.num_heads,
    "model.moe.num_experts": moe.num_experts,
    "model.moe.layers": moe.layers,
    "model.moe.ffn_hidden_size": moe.expert_width,
    "model.moe.router_dtype": moe.router_dtype,
    "model.moe.router_load_balancing_type": moe.balancing,
    "model.moe.token_dispatcher": lambda p: p["moe_token_dispatcher_type"],
    "model.moe.aux_loss_coeff": moe.coefficients,
    "model.moe.router_force_load_balancing": moe.forced_balance,
    "model.moe.router_logit_softcapping": moe.soft_cap,
    "model.moe.expert_capacity_factor": moe.capacity_factor,
    "model.parallel.cp_comm_type": context.communication,
    "model.parallel.hierarchical_context_parallel_sizes": context.levels,
    "model.pipeline.algorithm": pipeline.algorithm,
    "model.pipeline.num_chunks": pipeline.num_chunks,
    "model.pipeline.layers_per_stage": pipeline.layers_per_stage,
    "model.pipeline.delay_weight_gradients": pipeline.delays_weight_gradients,
    "model.pipeline.num_slices": zero_bubble.num_slices,
    "model.pipeline.interleave_group_size": pipeline.interleave_group_size,
    "model.pipeline.communication_method": pipeline.communication_method,
    "model.pipeline.max_memory": lambda p: pipeline.per_rank(p, "pp_max_mem") or zero_bubble.initial_memory(p),
    "model.pipeline.timed_steps": zero_bubble.timed_steps,
    "model.pipeline.max_pending_backward": zero_bubble.max_pending,
    "model.pipeline.offload.tensors": offload.tensors,
    "model.pipeline.offload.num_chunks": offload.num_chunks,
    "model.pipeline.offload.time": offload.time,
    "model.pipeline.cost_forward": lambda p: pipeline.per_rank(p, "pp_cost_f"),
    "model.pipeline.cost_input_grad": lambda p: pipeline.per_rank(p, "pp_cost_b"),
    "model.pipeline.cost_weight_grad": lambda p: pipeline.per_rank(p, "pp_cost_w"),
    "model.recompute.granularity": lambda p: p["recompute_granularity"],
    "model.recompute.layer_ids": recompute.layer_ids,
    "model.init.meta_device": fsdp.builds_on_meta,
    "model.position.type": positions.position_type,
    "model.position.max_position_embeddings": positions.max_position_embeddings,
    "model.position.yarn_original_max_position_embeddings": positions.yarn_original_context,
    "model.position.rope_scaling_context": positions.llama3_original_context,
    "model.position.unrotated_layers": positions.unrotated_layers,
}
_OVERLAP: dict[str, Quantity] = {
    f"model.tp_overlap.{name.replace('_', '.')}": form for name, form in tp_overlap.PRODUCTS.items()
}
_OPTIMIZATION: dict[str, Quantity] = {
    "ddp.use_megatron_fsdp": fsdp.is_fsdp,
    "optimizer.lr": lambda p: p["lr"] or 0.0,
    "scheduler.lr_decay_steps": schedule.decay_samples,
    "scheduler.lr_warmup_steps": schedule.warmup_samples,
    "scheduler.wsd_decay_steps": schedule.anneal_samples,
    "scheduler.start_weight_decay": lambda p: schedule.weight_decay_range(p)[0],
    "scheduler.end_weight_decay": lambda p: schedule.weight_decay_range(p)[1],
    "scheduler.weight_decay_incr_steps": duration.total_samples,
    "mixed_precision.params_dtype": precision.params_dtype,
    "mixed_precision.grad_dtype": precision.grad_dtype,
    "mixed_precision.loss_scale": precision.loss_scale,
}
_DATA: dict[str, Quantity] = {
    "dataset.blend": data.blend,
    "dataset.train_blend": lambda p: data.split_blends(p)["train"],
    "dataset.valid_blend": lambda p: data.split_blends(p)["valid"],
    "dataset.test_blend": lambda p: data.split_blends(p)["test"],
    "dataset.split": data.split,
    "dataset.cache_path": _input("data_cache_path"),
    "dataset.create_attention_mask_in_dataloader": data.builds_mask,
    "tokenizer.model": tokenizer_model,
    "tokenizer.vocab_size": lambda p: p["vocab_size"] if p["tokenizer_type"] in SIZED else None,
    "tokenizer.vocab_file": _input("vocab_file"),
    "tokenizer.merge_file": _input("merge_file"),
}
_OUTPUT: dict[str, Quantity] = {
    "run.task": lambda p: p.run.task,
    "dist.communicators": lambda p: [to_dict(each) for each in groups.communicators(p)],
    "checkpoint.ckpt_step": lambda p: p["ckpt_step"] or None,
    "checkpoint.save": _output("save"),
    "checkpoint.non_persistent.global_dir": _output("non_persistent_global_ckpt_dir"),
    "checkpoint.non_persistent.local_dir": _output("non_persistent_local_ckpt_dir"),
    "checkpoint.non_persistent.replication_jump": lambda p: p["replication_jump"] if p["replication"] else None,
    "checkpoint.non_persistent.replication_factor": lambda p: p["replication_factor"] or 2,
    "checkpoint.load": _input("load"),
    "checkpoint.pretrained_checkpoint": _input("pretrained_checkpoint"),
    "logger.tensorboard_dir": logging.tensorboard_folder,
    "logger.wandb_project": logging.wandb_project,
    "logger.wandb_exp_name": logging.wandb_name,
    "logger.wandb_save_dir": logging.wandb_folder,
    "logger.mlflow_run_name": logging.mlflow_run_name,
    "logger.mlflow_experiment_name": lambda p: None if p["disable_mlflow"] else p["mlflow_experiment_name"],
    "logger.file_sink_level": logging.file_level,
    "logger.stderr_sink_level": logging.stderr_level,
    "profiling.with_cpu": lambda p: not p["disable_profiler_activity_cpu"],
}

COMPUTED: dict[str, Quantity] = {**_TRAIN, **_MODEL, **_OVERLAP, **_OPTIMIZATION, **_DATA, **_OUTPUT}
"""Container path to the function that gives its value."""
