"""Derived values against the numbers that Megatron gives, and presets that give way to the user."""

from pathlib import Path
from typing import Any

import pytest

Overrides = dict[str, Any]
SAMPLES = {"train_iters": None, "train_samples": 48}


@pytest.mark.parametrize(
    ("overrides", "world_size", "size"),
    [({}, 1, 8), ({"global_batch_size": None}, 1, 1), ({"global_batch_size": None, "micro_batch_size": 3}, 2, 6)],
)
def test_a_null_global_batch_is_one_microbatch_a_rank(build: Any, overrides: Overrides, world_size: int, size: int) -> None:
    assert build(overrides, world_size=world_size).config.train.global_batch_size == size


@pytest.mark.parametrize("given", ["2 2 12", "2, 2, 12", [2, 2, 12], "[2, 2, 12]"])
def test_a_ramp_may_be_words_or_a_list(build: Any, given: Any) -> None:
    assert build({"rampup_batch_size": given}).config.train.rampup_batch_size == (2, 2, 12)


@pytest.mark.parametrize(("samples", "iterations"), [(5, 3), (12, 4), (40, 7), (41, 7), (100, 14)])
def test_iterations_of_a_sample_budget_follow_the_ramp(build: Any, samples: int, iterations: int) -> None:
    train = build({"train_iters": None, "train_samples": samples, "rampup_batch_size": "2 2 12"}).config.train
    assert (train.train_iters, train.train_samples) == (iterations, samples)


def test_iterations_of_a_sample_budget_drop_the_last_part(build: Any) -> None:
    assert build({"train_iters": None, "train_samples": 55}).config.train.train_iters == 6


def test_a_ramp_by_iterations_has_its_schedule_in_real_samples(build: Any) -> None:
    scheduler = build({"rampup_batch_size": "2 2 12", "lr_warmup_iters": 3}).config.scheduler
    assert (scheduler.lr_decay_steps, scheduler.lr_warmup_steps, scheduler.weight_decay_incr_steps) == (30, 8, 30)


@pytest.mark.parametrize(
    ("overrides", "decay", "warmup", "anneal", "growth"),
    [
        ({}, 48, 0, None, 48),
        ({"lr_warmup_iters": 2}, 48, 16, None, 48),
        ({"lr_decay_iters": 4}, 32, 0, None, 48),
        ({"lr_decay_iters": 9, "lr_warmup_fraction": 0.1}, 72, 7.2, None, 48),
        ({"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2}, 48, 0, 16, 48),
        ({**SAMPLES, "lr_warmup_samples": 5}, 48, 5, None, 48),
        ({**SAMPLES, "lr_decay_samples": 40, "lr_warmup_fraction": 0.25}, 40, 10, None, 48),
        ({**SAMPLES, "lr_decay_style": "WSD", "lr_wsd_decay_samples": 7}, 48, 0, 7, 48),
    ],
    ids=str,
)
def test_schedules_count_samples(
    build: Any, overrides: Overrides, decay: int, warmup: float, anneal: int | None, growth: int
) -> None:
    scheduler = build(overrides).config.scheduler
    assert scheduler.lr_decay_steps == decay
    assert scheduler.lr_warmup_steps == pytest.approx(warmup)
    assert scheduler.wsd_decay_steps == anneal
    assert scheduler.weight_decay_incr_steps == growth


def test_weight_decay_is_one_value_or_a_range(build: Any) -> None:
    scheduler = build({"weight_decay": 0.1}).config.scheduler
    assert (scheduler.start_weight_decay, scheduler.end_weight_decay) == (0.1, 0.1)
    growing = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.2}
    scheduler = build(growing).config.scheduler
    assert (scheduler.start_weight_decay, scheduler.end_weight_decay) == (0.0, 0.2)


@pytest.mark.parametrize(
    ("hidden", "swiglu", "width"),
    [(1024, True, 2688), (2048, True, 5440), (4096, True, 10880), (8192, True, 21824), (1024, False, 4096)],
)
def test_a_null_feed_forward_width_follows_from_the_hidden_size(build: Any, hidden: int, swiglu: bool, width: int) -> None:
    overrides = {"hidden_size": hidden, "num_attention_heads": 8, "swiglu": swiglu, "ffn_hidden_size": None}
    model = build(overrides).config.model
    assert (model.ffn_hidden_size, model.attention.kv_channels) == (width, hidden // 8)


@pytest.mark.parametrize(
    ("overrides", "groups"),
    [
        ({}, 4),
        ({"num_query_groups": 2}, 4),
        ({"num_query_groups": 2, "group_query_attention": True}, 2),
        ({"group_query_attention": True}, 4),
    ],
    ids=str,
)
def test_query_groups_count_under_their_switch(build: Any, overrides: Overrides, groups: int) -> None:
    assert build(overrides).config.model.attention.num_query_groups == groups


@pytest.mark.parametrize(
    ("overrides", "activation"),
    [
        ({}, "swiglu"),
        ({"swiglu": False, "squared_relu": True}, "squared_relu"),
        ({"swiglu": False, "quick_geglu": True}, "quick_geglu"),
        ({"swiglu": False}, "gelu"),
        ({"swiglu": False, "openai_gelu": True}, "gelu_tanh"),
        ({"swiglu": False, "bias_gelu_fusion": True}, "gelu"),
        ({"swiglu": False, "bias_gelu_fusion": True, "add_bias_linear": True}, "gelu_tanh"),
    ],
    ids=str,
)
def test_the_activation_follows_from_its_switches(build: Any, overrides: Overrides, activation: str) -> None:
    assert build(overrides).config.model.activation == activation


@pytest.mark.parametrize(
    ("overrides", "scheme"),
    [
        ({"position_embedding_type": "learned_absolute"}, "learned_absolute"),
        ({"position_embedding_type": "none"}, "none"),
        ({"position_embedding_type": "none", "use_rotary_position_embeddings": True}, "rope"),
        ({"position_embedding_type": "learned_absolute", "use_rotary_position_embeddings": False}, "learned_absolute"),
        ({"position_embedding_type": "yarn"}, "yarn"),
        ({"position_embedding_type": "learned_absolute", "add_position_embedding": True}, "learned_absolute"),
    ],
    ids=str,
)
def test_the_position_scheme_follows_its_key(build: Any, overrides: Overrides, scheme: str) -> None:
    assert build(overrides).config.model.position.type == scheme


def test_the_preset_position_scheme_starts(build: Any) -> None:
    assert build(without=["position_embedding_type"]).config.model.position.type == "learned_absolute"


def test_aliases_give_depth_and_length(build: Any) -> None:
    model = build({"num_layers": None, "encoder_num_layers": 3, "seq_length": None, "encoder_seq_length": 16}).config.model
    assert (model.num_layers, model.seq_length) == (3, 16)


@pytest.mark.parametrize(
    ("overrides", "norm"),
    [({}, "none"), ({"qk_layernorm": True}, "model"), ({"qk_layernorm": True, "qk_l2_norm": True}, "l2")],
    ids=str,
)
def test_the_weightless_head_norm_wins(build: Any, overrides: Overrides, norm: str) -> None:
    assert build(overrides).config.model.attention.qk_norm == norm


def test_biases_reach_the_fused_projection(build: Any) -> None:
    assert build({"add_bias_linear": True}).config.model.attention.add_qkv_bias
    assert build({"add_qkv_bias": True}).config.model.attention.add_qkv_bias
    assert not build().config.model.attention.add_qkv_bias


def test_layer_scaling_softens_in_fp32(build: Any) -> None:
    attention = build({"apply_query_key_layer_scaling": True}).config.model.attention
    assert (attention.query_key_layer_scaling, attention.softmax_in_fp32) == (True, True)


@pytest.mark.parametrize(
    ("overrides", "weights", "grads"),
    [
        ({}, "float32", "float32"),
        ({"bf16": True}, "bfloat16", "float32"),
        ({"bf16": True, "grad_reduce_in_bf16": True}, "bfloat16", "bfloat16"),
        ({"fp16": True}, "float16", "float16"),
        ({"fp16": True, "accumulate_allreduce_grads_in_fp32": True}, "float16", "float32"),
    ],
    ids=str,
)
def test_dtypes_follow_from_their_switches(build: Any, overrides: Overrides, weights: str, grads: str) -> None:
    precision = build(overrides).config.mixed_precision
    assert (precision.params_dtype, precision.grad_dtype) == (weights, grads)


def test_loss_scale_zero_means_dynamic(build: Any) -> None:
    assert build({"fp16": True, "loss_scale": 0}).config.mixed_precision.loss_scale is None
    assert build({"fp16": True, "loss_scale": 8}).config.mixed_precision.loss_scale == 8.0


def test_dynamic_scaling_switches_the_nan_check_off(build: Any) -> None:
    built = build({"fp16": True})
    assert not built.config.train.check_for_nan_in_loss_and_grad
    assert any("check_for_nan_in_loss_and_grad" in notice for notice in built.notices)
    assert build({"fp16": True, "loss_scale": 8}).config.train.check_for_nan_in_loss_and_grad


@pytest.mark.parametrize(
    ("overrides", "without", "aside"),
    [
        ({"fp16": True}, ["bf16"], "bf16 true (primus/configs/modules/megatron/trainer_base.yaml:"),
        ({"use_torch_fsdp2": True}, [], "use_distributed_optimizer true (primus/configs"),
        ({}, ["use_flash_attn"], "use_flash_attn true (primus/configs/modules/megatron/pre_trainer.yaml:"),
        ({"train_samples": 48}, ["train_iters"], "train_iters 1000 (primus/configs/modules/megatron/pre_trainer.yaml:"),
        (SAMPLES, ["lr_warmup_iters"], "lr_warmup_iters 40 (primus/configs/modules/megatron/pre_trainer.yaml:"),
        ({"lr_warmup_fraction": 0.1}, ["lr_warmup_iters"], "lr_warmup_iters 40 (primus/configs"),
        ({"data_path": "a"}, [], "data_path a (exp.yaml:"),
        ({"tokenizer_type": "GPT2BPETokenizer"}, [], "tokenizer_type GPT2BPETokenizer (exp.yaml:"),
    ],
    ids=str,
)
def test_what_gives_way_is_announced(build: Any, overrides: Overrides, without: list[str], aside: str) -> None:
    notices = build(overrides, without=without).notices
    assert any(notice.startswith(aside) and "is laid aside" in notice for notice in notices), notices


def test_a_preset_split_gives_way_to_own_data(build: Any) -> None:
    own = {"mock_data": False, "train_data_path": "a", "seq_length": 32, "save_interval": 9}
    built = build(own, config="trainer_base.yaml")
    assert built.config.dataset.split is None
    assert any(notice.startswith("split 99,1,0 (primus/configs") for notice in built.notices)


def test_preset_sequence_parallelism_goes_without_a_word(build: Any) -> None:
    built = build()
    assert not built.config.model.parallel.sequence_parallel
    assert not any("sequence_parallel" in notice for notice in built.notices)
    assert build({"tensor_model_parallel_size": 2}, world_size=2).config.model.parallel.sequence_parallel
    assert any("sequence_parallel true (exp.yaml" in notice for notice in build({"sequence_parallel": True}).notices)


def test_mock_data_brings_its_tokenizer(build: Any) -> None:
    built = build(without=["tokenizer_type", "vocab_size"])
    assert (built.config.tokenizer.type, built.config.tokenizer.vocab_size) == ("NullTokenizer", 131072)
    assert any(notice.startswith("vocab_size is 131072") for notice in built.notices)


def test_one_source_without_a_split_gets_the_default(build: Any) -> None:
    built = build({"mock_data": False, "data_path": "0.25 a 0.75 /data/b"})
    dataset = built.config.dataset
    assert dataset.split == "969, 30, 1"
    assert dataset.blend is not None
    assert dataset.blend.prefixes == (str(Path.cwd() / "a"), "/data/b")
    assert dataset.blend.weights == (0.25, 0.75)
    assert any(notice.startswith("split is 969, 30, 1") for notice in built.notices)


def test_files_may_hold_the_blends(build: Any, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("1 a\n2 b\n")
    dataset = build({"mock_data": False, "data_args_path": "one.txt", "split": "1,1,1"}).config.dataset
    assert dataset.blend is not None
    assert (len(dataset.blend.prefixes), dataset.blend.weights) == (2, (1.0, 2.0))
    (tmp_path / "own.json").write_text('{"train": "a b", "valid": ["c"], "test": null}')
    dataset = build({"mock_data": False, "per_split_data_args_path": "own.json"}).config.dataset
    assert [b and len(b.prefixes) for b in (dataset.train_blend, dataset.valid_blend, dataset.test_blend)] == [2, 1, None]
    assert (dataset.blend, dataset.split) == (None, None)


def test_a_mask_is_built_only_where_it_says_more_than_causal(build: Any) -> None:
    assert not build().config.dataset.create_attention_mask_in_dataloader
    assert build({"reset_attention_mask": True}).config.dataset.create_attention_mask_in_dataloader


def test_written_paths_lie_in_the_run_folder_and_read_ones_where_the_user_stands(build: Any, tmp_path: Path) -> None:
    checkpoint = build({"save": "ckpt", "load": "old", "pretrained_checkpoint": "../base"}).config.checkpoint
    assert checkpoint.save == str(tmp_path / "run" / "ckpt")
    assert checkpoint.load == str(tmp_path / "old")
    assert checkpoint.pretrained_checkpoint == str(tmp_path.parent / "base")
    assert build({"save": "/big/ckpt"}).config.checkpoint.save == "/big/ckpt"
    assert build().config.checkpoint.save is None


def test_a_local_tokenizer_becomes_absolute_and_a_hub_id_stays(build: Any, tmp_path: Path) -> None:
    real = {"mock_data": False, "data_path": "a", "tokenizer_type": "HuggingFaceTokenizer"}
    (tmp_path / "tok").mkdir()
    assert build({**real, "tokenizer_model": "tok"}).config.tokenizer.model == str(tmp_path / "tok")
    tokenizer = build({**real, "tokenizer_model": "org/name"}).config.tokenizer
    assert (tokenizer.model, tokenizer.vocab_size) == ("org/name", None)


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ({}, None),
        ({"disable_tensorboard": False}, "run/tensorboard"),
        ({"disable_tensorboard": False, "tensorboard_dir": "tb"}, "run/tb"),
        ({"tensorboard_dir": "tb"}, "run/tb"),
        ({"tensorboard_dir": "tb", "disable_tensorboard": True}, None),
        ({"profile": True}, "run/tensorboard"),
    ],
    ids=str,
)
def test_tensorboard_has_a_home(build: Any, tmp_path: Path, overrides: Overrides, folder: str | None) -> None:
    expected = None if folder is None else str(tmp_path / folder)
    assert build(overrides).config.logger.tensorboard_dir == expected


def test_trackers_start_by_their_switch_with_names_of_the_run(build: Any, tmp_path: Path) -> None:
    off = build({"wandb_project": "p", "mlflow_run_name": "r"}).config.logger
    assert (off.wandb_project, off.wandb_exp_name, off.wandb_save_dir, off.mlflow_run_name) == (None, None, None, None)
    on = build({"disable_wandb": False, "disable_mlflow": False}).config.logger
    assert (on.wandb_project, on.wandb_exp_name, on.mlflow_run_name) == ("amd_ann", "tiny", "amd_ann")
    assert on.wandb_save_dir == str(tmp_path / "run" / "wandb")
    assert build({"disable_wandb": False, "wandb_project": "p"}).config.logger.wandb_project == "p"


@pytest.mark.parametrize(
    ("overrides", "console", "file"),
    [
        ({}, "INFO", "DEBUG"),
        ({"sink_level": "ERROR"}, "ERROR", "ERROR"),
        ({"stderr_sink_level": "WARNING"}, "WARNING", "DEBUG"),
        ({"logging_level": 10, "sink_level": "ERROR"}, "DEBUG", "ERROR"),
    ],
    ids=str,
)
def test_the_nearer_level_wins(build: Any, overrides: Overrides, console: str, file: str) -> None:
    logger = build(overrides).config.logger
    assert (logger.stderr_sink_level, logger.file_sink_level) == (console, file)


def test_evaluation_only_restores_no_optimizer(build: Any) -> None:
    config = build({"skip_train": True, "eval_iters": 2, "lr": None, "min_lr": 0.0}).config
    assert (config.checkpoint.no_load_optim, config.optimizer.lr) == (True, 0.0)


@pytest.mark.parametrize(
    ("overrides", "without", "backend"),
    [
        ({"deterministic_mode": False}, ["use_flash_attn"], "flash"),
        ({}, [], "auto"),
        ({"attention_backend": "unfused"}, [], "unfused"),
        ({"attention_backend": "local", "deterministic_mode": False}, ["use_flash_attn"], "local"),
    ],
    ids=str,
)
def test_a_preferred_kernel_yields_to_a_chosen_one(build: Any, overrides: Overrides, without: list[str], backend: str) -> None:
    assert build(overrides, without=without).config.model.attention.backend == backend
