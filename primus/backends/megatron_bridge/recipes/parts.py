"""Sub-configs that flavors of both kinds share, and laying further values over them.

The optimizer is Megatron-Bridge's "distributed fused Adam with cosine annealing": its schedule of weight decay, 0.033
throughout, is what parameters meet, whatever `weight_decay` says.
"""

import copy
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from primus.backends.megatron_bridge.container import (
    CheckpointConfig,
    CommOverlapConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTDatasetConfig,
    LoggerConfig,
    MixedPrecisionConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from primus.backends.megatron_bridge.model_keys import model_from_keys
from primus.backends.megatron_bridge.recipes.arguments import Run
from primus.backends.megatron_bridge.recipes.model import Shape
from primus.core.experiment.nearest import did_you_mean
from primus.errors import ConfigError

__all__ = ["DEGREES", "NORM_RECOMPUTED", "SUMS_IN_BF16", "WHOLE_LAYERS", "base", "laid_over"]

T = TypeVar("T", MixedPrecisionConfig, CommOverlapConfig)

SUMS_IN_BF16: Mapping[str, Any] = {
    "bf16": True,
    "params_dtype": "bf16",
    "pipeline_dtype": "bf16",
    "grad_reduce_in_fp32": False,
}
"""Mixed precision that adds gradients of replicas in bf16."""
WHOLE_LAYERS: Mapping[str, Mapping[str, Any]] = {
    "model": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
}
"""Every layer is computed again."""
NORM_RECOMPUTED: Mapping[str, Mapping[str, Any]] = {"model": {"recompute_granularity": "selective"}}
"""Attention is computed again."""

DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "pipeline_dtype",
)
"""Arguments that are fields of the model."""


def base(shape: Shape, args: Run, *, lr: float | None, beta2: float, seed: int) -> ConfigContainer:
    """Return a container without data, adapters and what a family says besides."""
    model = model_from_keys(shape.architecture(args.hf_path))
    for name in DEGREES:
        if (value := getattr(args, name)) is not None:
            setattr(model, name, value)
    model.seq_length = args.seq_length
    if args.moe_flex_dispatcher_backend is not None:
        model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend = "flex", args.moe_flex_dispatcher_backend
    return ConfigContainer(
        model=model,
        train=TrainingConfig(
            train_iters=args.train_iters,
            global_batch_size=args.global_batch_size,
            micro_batch_size=args.micro_batch_size,
            eval_interval=args.eval_interval,
            eval_iters=32,
            manual_gc=True,
            manual_gc_interval=100,
            manual_gc_eval=True,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam",
            lr=lr,
            min_lr=args.min_lr,
            weight_decay=0.1,
            adam_beta1=0.9,
            adam_beta2=beta2,
            adam_eps=1e-5,
            clip_grad=1.0,
            use_distributed_optimizer=True,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="cosine",
            lr_decay_iters=args.lr_decay_iters,
            lr_warmup_iters=args.lr_warmup_iters or 0,
            lr_warmup_init=0.0,
            start_weight_decay=0.033,
            end_weight_decay=0.033,
            weight_decay_incr_style="constant",
            override_opt_param_scheduler=True,
        ),
        ddp=DistributedDataParallelConfig(
            check_for_nan_in_grad=True, use_distributed_optimizer=True, use_megatron_fsdp=bool(args.use_megatron_fsdp)
        ),
        tokenizer=TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=args.hf_path or shape.tokenizer),
        checkpoint=_checkpoints(args),
        dataset=GPTDatasetConfig(seq_length=args.seq_length),
        logger=LoggerConfig(log_interval=1, tensorboard_dir=str(_folder(args) / "tb_logs")),
        rng=RNGConfig(seed=seed),
        mixed_precision=_named_or(MixedPrecisionConfig, args.precision_config, "precision_config"),
        comm_overlap=_named_or(CommOverlapConfig, args.comm_overlap_config, "comm_overlap_config"),
    )


def _named_or(kind: type[T], given: Any, argument: str) -> Any:
    """Return a map as the sub-config with its fields; names and sub-configs as they are."""
    if not isinstance(given, Mapping):
        return copy.deepcopy(given)
    known = [each.name for each in fields(kind)]
    problems = [
        f"{argument}.{name}: {kind.__name__} has no such field. {did_you_mean(name, known)}"
        for name in given
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return kind(**given)


def laid_over(config: ConfigContainer, fields: Mapping[str, Mapping[str, Any]]) -> None:
    """Set fields of sub-configs."""
    for part, values in fields.items():
        target = getattr(config, part)
        for name, value in values.items():
            if not hasattr(target, name):
                raise AttributeError(f"{part} has no field {name}")
            setattr(target, name, value)


def _folder(args: Run) -> Path:
    """Folder of the run; relative ones lie in the experiment's."""
    return Path(args.dir or "", args.name or "")


def _checkpoints(args: Run) -> CheckpointConfig:
    save = str(_folder(args) / "checkpoints")
    return CheckpointConfig(
        save=save, load=save, save_interval=args.save_interval, ckpt_format="torch_dist", fully_parallel_save=True
    )
