"""Every container field has exactly one origin, and every live key that is copied reaches its field."""

import dataclasses
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.keys import KEYS
from primus.backends.megatron.to_container import COMPUTED, targets
from primus.core.experiment import load_experiment
from primus.engine.config import ConfigContainer
from primus.engine.config.serialize import dump, from_dict, to_dict

ENGINE_ONLY = {
    "model.position.yarn_beta_fast",
    "model.position.yarn_beta_slow",
    "model.parallel.pipeline_model_parallel_size",
    "model.parallel.context_parallel_size",
    "peft",
    "checkpoint.hf_path",
    "dataset.sft",
}
"""Fields without a live key: constants of the reference, degrees that are not built, and what Bridge alone says."""


def fields_of(cls: type, path: str = "") -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from fields_of(typing.cast(type, kind), f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}"


def at(config: ConfigContainer, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


COPIED = [(name, path) for name, key in KEYS.items() for path in targets(key) if path not in COMPUTED]


def test_every_field_has_one_origin() -> None:
    identity = {f"run.{name}" for name in ("work_group", "user_name", "exp_name", "folder", "task")}
    copied = [path for _, path in COPIED]
    assert len(copied) == len(set(copied))
    assert set(copied) | set(COMPUTED) | ENGINE_ONLY | identity == set(fields_of(ConfigContainer))


def test_every_live_key_has_a_field() -> None:
    fields = set(fields_of(ConfigContainer))
    assert [name for name, key in KEYS.items() if key.status == "live" and not set(targets(key)) <= fields] == []
    assert [name for name, key in KEYS.items() if key.status == "live" and not targets(key)] == []


OTHER: dict[str, Any] = {
    "deterministic_mode": False,
    "check_for_nan_in_loss_and_grad": False,
    "distributed_backend": "nccl",
    "dataloader_type": "cyclic",
    "tokenizer_type": "TikTokenizer",
    "normalization": "LayerNorm",
    "fp32_residual_connection": True,
    "adam_beta1": 0.5,
    "adam_beta2": 0.25,
    "min_lr": 1e-5,
    "lr": 0.5,
    "lr_warmup_init": 1e-4,
    "hidden_dropout": 0.5,
    "attention_dropout": 0.5,
    "rotary_percent": 0.5,
    "ckpt_format": "torch",
    "dist_ckpt_strictness": "log_all",
    "optimizer": "sgd",
    "lr_decay_style": "linear",
    "lr_wsd_decay_style": "linear",
    "timing_log_option": "all",
    "profile_ranks": [1, 2],
    "iterations_to_skip": [3],
    "tiktoken_special_tokens": ["<unk>"],
    "tiktoken_pattern": "v1",
    "tensor_model_parallel_size": 2,
    "microbatch_group_size_per_vp_stage": 4,
    "num_attention_heads": 8,
    "hidden_size": 64,
    "micro_batch_size": 2,
    "train_samples": 48,
}
"""Another legal value where adding one or turning round is none."""
TOGETHER: dict[str, dict[str, Any]] = {
    "expert_model_parallel_size": {"num_experts": 4},
    "moe_use_upcycling": {"num_experts": 4, "load": "dense", "save": "c", "save_interval": 1},
    "fp32_residual_connection": {"bf16": True},
    "fp16_lm_cross_entropy": {"fp16": True},
    "auto_continue_train": {"save": "c"},
    "log_progress": {"save": "c"},
    "load_main_params_from_ckpt": {"no_load_optim": True},
    "overlap_param_gather": {"overlap_grad_reduce": True},
    "overlap_param_gather_with_optimizer_step": {
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "pipeline_model_parallel_size": 2,
        "num_virtual_stages_per_pipeline_rank": 2,
        "num_layers": 4,
    },
    "use_checkpoint_opt_param_scheduler": {"override_opt_param_scheduler": False},
    "cross_entropy_loss_fusion": {"deterministic_mode": False},
    "skip_train": {"eval_iters": 2},
    "full_validation": {},
    "multiple_validation_sets": {"full_validation": True, "mock_data": False, "train_data_path": "a", "valid_data_path": "b"},
    "mock_data": {"data_path": "a"},
    "sequence_parallel": {"tensor_model_parallel_size": 2},
    "defer_embedding_wgrad_compute": {"pipeline_model_parallel_size": 2},
    "train_samples": {"train_iters": None},
    "weight_decay_incr_style": {"start_weight_decay": 0.0, "end_weight_decay": 0.1},
    "tokenizer_type": {"mock_data": False, "data_path": "a", "tokenizer_model": "t", "vocab_size": 2000},
    "save_retain_interval": {"save": "c", "save_interval": 1},
    "non_persistent_save_interval": {"save": "c", "save_interval": 2, "non_persistent_ckpt_type": "global"},
    "recompute_method": {"recompute_granularity": "full", "recompute_num_layers": 1},
    "recompute_num_layers": {"recompute_granularity": "full", "recompute_method": "block"},
    "microbatch_group_size_per_vp_stage": {
        "pipeline_model_parallel_size": 2,
        "num_virtual_stages_per_pipeline_rank": 2,
        "num_layers": 4,
        "global_batch_size": 8,
    },
    "enable_optimizer_post_validation": {"pipeline_model_parallel_size": 2, "patch_zero_bubble": True, "num_layers": 4},
    "distribute_saved_activations": {
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 1,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": False,
    },
}
"""What a key needs beside it."""
TWO_RANKS = (
    "expert_model_parallel_size",
    "overlap_param_gather_with_optimizer_step",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "enable_optimizer_post_validation",
    "context_parallel_size",
    "num_distributed_optimizer_instances",
    "microbatch_group_size_per_vp_stage",
    "defer_embedding_wgrad_compute",
    "sequence_parallel",
    "distribute_saved_activations",
)


def another(name: str, value: Any) -> Any:
    """Return a legal value of the key that differs from `value`."""
    key = KEYS[name]
    if name in OTHER:
        return OTHER[name]
    if key.choices:
        return next(choice for choice in key.choices if choice != value)
    if key.type.startswith("bool"):
        return not value
    if key.type.startswith("int"):
        return (value or 0) + 1
    if key.type.startswith("float"):
        return (value or 0.0) + 1.0
    return "/other"


@pytest.mark.parametrize(("name", "path"), COPIED, ids=[name for name, _ in COPIED])
def test_a_copied_key_reaches_its_field(build: Any, name: str, path: str) -> None:
    beside = TOGETHER.get(name, {})
    before = at(build().config, path)
    wanted = another(name, list(before) if isinstance(before, tuple) else before)
    built = build({**beside, name: wanted}, world_size=2 if name in TWO_RANKS else 1)
    after = at(built.config, path)
    assert (list(after) if isinstance(after, tuple) else after) == wanted != before
    assert f"({name})" in built.sources[path]
    assert "exp.yaml:" in built.sources[path]


@pytest.mark.parametrize("spelling", ["use_megatron_fsdp", "use_custom_fsdp"])
@pytest.mark.parametrize(("strategy", "shards"), [("no_shard", False), ("optim", True), ("optim_grads_params", True)])
def test_either_spelling_of_fsdp_shards_what_the_strategy_says(build: Any, spelling: str, strategy: str, shards: bool) -> None:
    for given in (True, False):
        built = build({spelling: True, "data_parallel_sharding_strategy": strategy, "use_distributed_optimizer": given})
        assert built.config.ddp.use_megatron_fsdp
        assert built.config.ddp.use_distributed_optimizer is shards
        assert any("use_distributed_optimizer" in line and "becomes" in line for line in built.notices) is (given is not shards)


def test_a_small_experiment_survives_the_file_form(build: Any) -> None:
    built = build()
    assert from_dict(to_dict(built.config)) == built.config
    text = dump(built.config, built.sources)
    assert "lr: 0.001  # exp.yaml:" in text
    assert "(lr)" in text


def test_values_off_the_default_have_their_source(build: Any) -> None:
    sources = build(base={"mock_data": True}, model="llama3_8B.yaml").sources
    assert sources["model.num_layers"].startswith("primus/configs/models/megatron/llama3_8B.yaml:")
    assert sources["optimizer.lr"].startswith("primus/configs/modules/megatron/pre_trainer.yaml:")
    assert sources["dataset.mock_data"] == "exp.yaml:11 (mock_data)"
    assert sources["model.attention.kv_channels"].startswith("derived: kv_channels null (primus/configs/models/megatron/")
    assert "checkpoint.ckpt_format" not in sources


EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "megatron" / "configs").rglob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_examples_build(file: Path, tmp_path: Path) -> None:
    world_size = 8 if file.parent.name != "cpu" else 2
    experiment = load_experiment(file, (), {})
    for module in experiment.modules.values():
        assert MegatronArgBuilder(experiment, module, world_size, tmp_path).build().config.train.train_iters > 0


TOKENIZER = {"mock_data": False, "data_path": "a", "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "t"}


@pytest.mark.parametrize(
    ("overrides", "path", "value"),
    [
        ({"untie_embeddings_and_output_weights": False}, "model.tie_embeddings", True),
        ({}, "model.tie_embeddings", False),
        ({}, "model.vocab_size", None),
        (TOKENIZER | {"vocab_size": 152064}, "model.vocab_size", 152064),
        ({"use_rope_scaling": True, "original_max_position_embeddings": 64}, "model.position.rope_scaling_context", 64),
        ({"use_rope_scaling": True}, "model.position.rope_scaling_context", 8192),
        ({}, "model.position.yarn_original_max_position_embeddings", 4096),
        ({"original_max_position_embeddings": 64}, "model.position.yarn_original_max_position_embeddings", 64),
        ({"attention_softmax_in_fp32": True}, "model.attention.softmax_in_fp32", True),
        ({"kv_channels": 16}, "model.attention.kv_channels", 16),
        ({"ffn_hidden_size": 80}, "model.ffn_hidden_size", 80),
        ({"weight_decay": 0.1}, "scheduler.end_weight_decay", 0.1),
        ({"ckpt_step": 3, "load": "old"}, "checkpoint.ckpt_step", 3),
        ({"ckpt_step": 0}, "checkpoint.ckpt_step", None),
        ({"tokenizer_model": "org/name"}, "tokenizer.model", None),
        ({"data_cache_path": "cache"}, "dataset.cache_path", "HERE/cache"),
        ({"vocab_file": "~/v.json"}, "tokenizer.vocab_file", "HOME/v.json"),
        ({"merge_file": "/m.txt"}, "tokenizer.merge_file", "/m.txt"),
        ({"disable_mlflow": False, "mlflow_experiment_name": "e"}, "logger.mlflow_experiment_name", "e"),
        ({"mlflow_experiment_name": "e"}, "logger.mlflow_experiment_name", None),
        ({"disable_wandb": False, "wandb_save_dir": "w"}, "logger.wandb_save_dir", "HERE/run/w"),
        ({"disable_profiler_activity_cpu": True}, "profiling.with_cpu", False),
        ({"trainable": True}, "run.task", "pretrain"),
    ],
    ids=str,
)
def test_a_computed_field_follows_from_its_keys(
    build: Any, tmp_path: Path, overrides: dict[str, Any], path: str, value: Any
) -> None:
    places = {"HERE": str(tmp_path), "HOME": str(Path.home())}
    if isinstance(value, str):
        for word, place in places.items():
            value = value.replace(word, place)
    assert at(build(overrides).config, path) == value
