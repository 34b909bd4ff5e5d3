"""`flat_values`: a container as the flat values of Megatron's keys, each with the place where the user decided it."""

import logging
import math
from collections.abc import Iterator
from dataclasses import replace

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.container import GPTDatasetConfig, LoggerConfig
from primus.backends.megatron_bridge.container.model import ModelProvider
from primus.backends.megatron_bridge.model_keys import KEY_OF_FIELD, keys_from_model, unstated
from primus.backends.megatron_bridge.translate.data import document_values, row_values
from primus.backends.megatron_bridge.translate.fields import NEGATED, SIMPLE_PARTS, key_of, refusal
from primus.backends.megatron_bridge.translate.notes import without_effect
from primus.backends.megatron_bridge.translate.overlap import overlap_values
from primus.backends.megatron_bridge.translate.precision import precision_values
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.backends.megatron_bridge.translate.validation import validation_values
from primus.core.experiment import Value
from primus.core.keys import parse_type, show_value

__all__ = ["flat_values"]

_GATHERS = ("ddp.overlap_param_gather", "optimizer.overlap_param_gather")


def flat_values(raw: Raw, *, world_size: int, problems: list[str], notices: list[str]) -> dict[str, Value]:
    """Return the values; what has no effect is noted, what is not built is a problem."""
    notices += without_effect(raw)
    values = dict(_simple(raw, problems))
    values |= _model(raw, problems)
    values |= validation_values(raw, problems) | _training(raw, notices) | _optimizer(raw) | _replicas(raw) | _outputs(raw)
    data = raw.config.dataset
    values |= document_values(raw, data) if isinstance(data, GPTDatasetConfig) else row_values(raw, data)
    model = raw.config.model
    sizes = (model.tensor_model_parallel_size, model.pipeline_model_parallel_size, model.context_parallel_size)
    values |= precision_values(raw, problems)
    return values | overlap_values(
        raw, data_ranks=world_size // max(1, math.prod(size or 1 for size in sizes)), problems=problems
    )


def _simple(raw: Raw, problems: list[str]) -> Iterator[tuple[str, Value]]:
    """Yield the fields that are keys; a key that is not built, or has no effect, only where it is not at its default."""
    for part in SIMPLE_PARTS:
        for name, value, default in raw.fields(part):
            path = f"{part}.{name}"
            key = key_of(path)
            if path in NEGATED:
                yield NEGATED[path], raw.value(not value, path)
            elif key is not None and (KEYS[key].status == "live" or value != default) and _is_said(key, value):
                yield key, raw.value(value, path)
            elif key is None and value != default:
                _refuse(raw, path, problems)


def _is_said(key: str, value: object) -> bool:
    """Tell whether a field says something: null where the key must have a value leaves it to Megatron's presets."""
    return value is not None or parse_type(KEYS[key].type).is_nullable


def _refuse(raw: Raw, path: str, problems: list[str]) -> None:
    """Tell of a field that is no key, is used nowhere else, and is not at its default."""
    if why := refusal(path):
        problems.append(f"{why}: it is {raw.where(path).removeprefix(path + ' ')}; leave it at its default.")


def _model(raw: Raw, problems: list[str]) -> dict[str, Value]:
    model, plain = raw.config.model, ModelProvider()
    field_of = {key: name for name, key in KEY_OF_FIELD.items()}
    if why := unstated(model):
        problems.append(f"{why} ({raw.source('model.activation_func', 'model.gated_linear_unit')}).")
    values = {}
    for key, value in keys_from_model(model).items():
        name = field_of.get(key)
        is_default = name is not None and value == getattr(plain, name)
        if (KEYS[key].status != "live" and is_default) or not _is_said(key, value):
            continue
        values[key] = raw.value(value, f"model.{name or _decides(key)}")
    for name, value, default in raw.fields("model"):
        if name not in KEY_OF_FIELD and value != default:
            _refuse(raw, f"model.{name}", problems)
    if model.moe_flex_dispatcher_backend is not None:
        values["moe_token_dispatcher_type"] = raw.value("flex", "model.moe_flex_dispatcher_backend")
    if raw.config.tokenizer.tokenizer_type == "NullTokenizer":
        values["vocab_size"] = raw.value(raw.config.tokenizer.vocab_size, "tokenizer.vocab_size")
    return values


def _decides(key: str) -> str:
    """Return the field that decides a key of another meaning."""
    return {
        "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights",
        "group_query_attention": "num_query_groups",
        "add_position_embedding": "position_embedding_type",
    }.get(key, "activation_func")


def _training(raw: Raw, notices: list[str]) -> dict[str, Value]:
    train, scheduler = raw.config.train, raw.config.scheduler
    warmup, length = scheduler.lr_warmup_iters, scheduler.lr_decay_iters or train.train_iters
    if isinstance(length, int) and isinstance(warmup, int) and warmup >= length > 0:
        notices.append(
            f"lr_warmup_iters {warmup} ({raw.source('scheduler.lr_warmup_iters')}) is capped at {length - 1}: the learning "
            f"rate has {length} iterations to rise and fall in."
        )
        warmup = length - 1
    values = {"lr_warmup_iters": raw.value(warmup, "scheduler.lr_warmup_iters")}
    checks = ("ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss")
    values["check_for_nan_in_loss_and_grad"] = raw.value(any(map(raw.at, checks)), *checks)
    return values


def _optimizer(raw: Raw) -> dict[str, Value]:
    """Return weight decay, which the schedule decides where it has ends, and the shards of the optimizer."""
    decay, ends = "optimizer.weight_decay", ("scheduler.start_weight_decay", "scheduler.end_weight_decay")
    start, end = map(raw.at, ends)
    if raw.config.scheduler.weight_decay_incr_style == "constant":
        given = (raw.at(decay), decay) if start is None else (start, ends[0])
        values = {"weight_decay": raw.value(*given)}
        values |= {"start_weight_decay": raw.value(None, decay), "end_weight_decay": raw.value(None, decay)}
    else:
        values = {"weight_decay": raw.value(raw.at(decay), decay)}
        values |= {"start_weight_decay": raw.value(start, ends[0]), "end_weight_decay": raw.value(end, ends[1])}
    for name in ("use_distributed_optimizer", "overlap_param_gather"):
        values[name] = _either(raw, f"ddp.{name}", f"optimizer.{name}")
    if not (values["use_distributed_optimizer"].value or any(map(raw.is_chosen, _GATHERS))):
        # A recipe's overlap is meant for the runs that divide the optimizer.
        values["overlap_param_gather"] = raw.value(False, "ddp.use_distributed_optimizer")
    kind = "scheduler.no_weight_decay_cond_type"
    if raw.at(kind) == "qwen3_next":
        values["apply_wd_to_qk_layernorm"] = raw.value(True, kind)
    return values


def _replicas(raw: Raw) -> dict[str, Value]:
    sharded = _either(raw, "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")
    path = "ddp.data_parallel_sharding_strategy"
    strategy = raw.value(raw.config.ddp.data_parallel_sharding_strategy, path)
    if sharded.value and strategy.value == "no_shard" and not raw.is_chosen(path):
        strategy = replace(sharded, value="optim_grads_params")
    values = {"use_megatron_fsdp": sharded, "data_parallel_sharding_strategy": strategy}
    if raw.config.ddp.bucket_size is not None:
        values["ddp_bucket_size"] = raw.value(raw.config.ddp.bucket_size, "ddp.bucket_size")
    if raw.config.dist.distributed_backend is not None:
        values["distributed_backend"] = raw.value(raw.config.dist.distributed_backend, "dist.distributed_backend")
    return values


def _outputs(raw: Raw) -> dict[str, Value]:
    """Return checkpoints and logs; a run whose `load` is its `save` goes on from there if it can."""
    checkpoint, logger = raw.config.checkpoint, raw.config.logger
    goes_on = checkpoint.load is not None and checkpoint.load == checkpoint.save
    values = {
        "save_interval": raw.value(checkpoint.save_interval, "checkpoint.save_interval"),
        "load": raw.value(None if goes_on else checkpoint.load, "checkpoint.load"),
        "auto_continue_train": raw.value(goes_on, "checkpoint.load", "checkpoint.save"),
        "disable_tensorboard": _without(raw, "tensorboard_dir"),
        "disable_wandb": _without(raw, "wandb_project"),
    }
    if logger.logging_level != LoggerConfig().logging_level or raw.is_chosen("logger.logging_level"):
        # A level that nobody chose would go before the sinks' own.
        values["logging_level"] = raw.value(_level(logger.logging_level), "logger.logging_level")
    profiling = raw.config.profiling
    if profiling is not None:
        path = "profiling.use_pytorch_profiler"
        values |= {key: raw.value(profiling.use_pytorch_profiler, path) for key in ("profile", "use_pytorch_profiler")}
    return values


def _without(raw: Raw, name: str) -> Value:
    """Return whether a tool is off because a field of the logger is empty; its place says which field."""
    value, source = raw.at(f"logger.{name}"), raw.source(f"logger.{name}")
    return Value(not value, source if value else f"{source}: {name} {show_value(value)}")


def _level(given: int | str) -> int | str:
    """Return the number of a level's name; what is no name is told by the key's row."""
    level = logging.getLevelName(given.upper()) if isinstance(given, str) else given
    return level if isinstance(level, int) else given


def _either(raw: Raw, *paths: str) -> Value:
    """Return whether one of two fields that mean one thing is on; the user's word goes before the recipe's."""
    chosen = [path for path in paths if raw.is_chosen(path)] or list(paths)
    return raw.value(any(raw.at(path) for path in chosen), *chosen)
