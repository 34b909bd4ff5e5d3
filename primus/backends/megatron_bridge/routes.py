"""Where a flat key goes: `routes_of` gives the fields of the container that a flat key decides.

A few keys have fields of another name, or several; any other goes to the first sub-config that has a field of its name.
"""

from dataclasses import is_dataclass

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.assignment import field_names
from primus.backends.megatron_bridge.container import (
    ConfigContainer,
    FaultToleranceConfig,
    ProfilingConfig,
    StragglerDetectionConfig,
)
from primus.backends.megatron_bridge.model_keys import KEY_OF_FIELD

__all__ = ["ARGUMENTS_ONLY", "KEY_ALIASES", "RUNTIME", "known_keys", "routes_of"]

RUNTIME = ("recipe", "flavor", "stage")
"""Keys that say what is merged, not what into it."""

ARGUMENTS_ONLY = {
    "finetune_lr": ("optimizer.lr",),
    "peft": ("peft",),
    "packed_sequence": ("dataset.packed_sequence_specs",),
    "hf_path": ("checkpoint.hf_path", "tokenizer.tokenizer_model"),
    "dir": ("checkpoint.save", "logger.tensorboard_dir"),
    "name": ("checkpoint.save", "logger.tensorboard_dir"),
    "use_null_tokenizer": ("tokenizer.tokenizer_type",),
    "data_paths": ("dataset.blend",),
    "data_args_path": ("dataset.data_args_path",),
    "train_data_path": ("dataset.blend_per_split",),
    "valid_data_path": ("dataset.blend_per_split",),
    "test_data_path": ("dataset.blend_per_split",),
    "per_split_data_args_path": ("dataset.per_split_data_args_path",),
    "mock": ("dataset.blend",),
}
"""Keys that a flavor alone can act on, and the fields that it decides by them."""

KEY_ALIASES = {"use_turbo_parallel_linear": "use_turbo_gemm"}
"""Bridge's names of Megatron keys."""

_ELSEWHERE = {
    "optimizer": ("optimizer.optimizer",),
    "lr": ("optimizer.lr",),
    "finetune_lr": ("optimizer.lr",),
    "seq_length": ("model.seq_length", "dataset.seq_length"),
    "use_distributed_optimizer": ("optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"),
    "overlap_param_gather": ("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    "use_megatron_fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "overlap_grad_reduce": ("ddp.overlap_grad_reduce",),
    "bucket_size": ("ddp.bucket_size",),
    "precision_config": ("mixed_precision",),
    "comm_overlap_config": ("comm_overlap",),
    "peft": ("peft",),
    "peft_dim": ("peft.dim",),
    "peft_alpha": ("peft.alpha",),
    "peft_dropout": ("peft.dropout",),
    "peft_target_modules": ("peft.target_modules",),
}
_ORDER = (
    "train",
    "model",
    "optimizer",
    "scheduler",
    "ddp",
    "dist",
    "checkpoint",
    "logger",
    "tokenizer",
    "rng",
    "rerun_state_machine",
    "profiling",
    "straggler",
    "ft",
    "dataset",
)
_KINDS = {"profiling": ProfilingConfig, "straggler": StragglerDetectionConfig, "ft": FaultToleranceConfig}
_PRECISION = ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis", "grad_reduce_in_fp32")
"""Fields that `mixed_precision` decides for the optimizer and the gradients."""
_FIELD_OF_KEY = {key: field for field, key in KEY_OF_FIELD.items() if key != field}


def routes_of(key: str, config: ConfigContainer) -> tuple[str, ...]:
    """Return the dotted fields that a flat key decides; none if the container has no such field."""
    if key == "seed":
        return ("rng.seed", "dataset.seed" if "seed" in field_names(type(config.dataset)) else "dataset.random_seed")
    if key in _PRECISION and config.mixed_precision is not None:
        return (f"mixed_precision.{key}",)
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    name = _FIELD_OF_KEY.get(key, key)
    for part in _ORDER:
        held = getattr(config, part)
        kind = type(held) if is_dataclass(held) else _KINDS.get(part)
        if kind is not None and name in field_names(kind):
            return (f"{part}.{name}",)
    return ()


def known_keys(config: ConfigContainer) -> list[str]:
    """Return every word that can stand beside `recipe`, for suggestions."""
    found = [*RUNTIME, *ARGUMENTS_ONLY, *_ELSEWHERE, *KEY_ALIASES, *field_names(ConfigContainer), "dataset_name", "skip_save"]
    for part in _ORDER:
        held = getattr(config, part)
        found += field_names(type(held)) if is_dataclass(held) else ()
    return list(dict.fromkeys([*found, *KEYS]))
