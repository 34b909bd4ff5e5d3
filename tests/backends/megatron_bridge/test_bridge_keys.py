"""Every documented key, set in an experiment, acts on the engine's container, or the run says or refuses it."""

import json
from pathlib import Path
from typing import Any

import pytest

from primus.backends.megatron.argument_builder import Built
from primus.backends.megatron_bridge.build import MegatronBridgeBuilder
from primus.backends.megatron_bridge.keys import KEYS
from primus.core.experiment import load_experiment
from primus.errors import ConfigError

TUNING = "vanilla_gpt_finetune_config"
TRAINING = "vanilla_gpt_pretrain_config"

# What a run sets, and what becomes of it; fields that several keys decide stand with one of them.
LORA = {
    "peft": ("dora", {"peft.scheme": "dora"}),
    "peft_dim": (5, {"peft.dim": 5}),
    "peft_alpha": (7, {"peft.alpha": 7.0}),
    "peft_dropout": (0.25, {"peft.dropout": 0.25}),
    "peft_target_modules": (["linear_fc2"], {"peft.target_modules": ("linear_fc2",)}),
    "packed_sequence": (True, {"dataset.sft.packing.size": 64}),
    "train_iters": (40, {"train.train_iters": 40}),
    "global_batch_size": (6, {"train.global_batch_size": 6}),
    "micro_batch_size": (1, {"train.micro_batch_size": 1}),
    "seq_length": (64, {"model.seq_length": 64}),
    "eval_interval": (3, {"train.evaluation.eval_interval": 3}),
    "save_interval": (4, {"checkpoint.save_interval": 4}),
    "finetune_lr": (0.25, {"optimizer.lr": 0.25}),
    "min_lr": (0.125, {"optimizer.min_lr": 0.125}),
    "lr_warmup_iters": (5, {"scheduler.lr_warmup_steps": 30}),
    "lr_decay_iters": (30, {"scheduler.lr_decay_steps": 180}),
    "recompute_granularity": ("full", {"model.recompute.granularity": "full"}),
    "recompute_method": ("block", {"model.recompute.method": "block"}),
    "recompute_num_layers": (1, {"model.recompute.num_layers": 1}),
    "dataset": ({"do_test": True}, {"dataset.sft.do_test": True}),
    "dataset_name": ("gsm8k", {"dataset.sft.train": "gsm8k"}),
    "wandb_project": ("p", {"logger.wandb_project": "p"}),
    "wandb_entity": ("e", {"logger.wandb_entity": "e"}),
    "wandb_exp_name": ("n", {"logger.wandb_exp_name": "n"}),
    "use_distributed_optimizer": (False, {"ddp.use_distributed_optimizer": False}),
    "cross_entropy_loss_fusion": (False, {"model.fusion.cross_entropy": False}),
    "file_sink_level": ("WARNING", {"logger.file_sink_level": "WARNING"}),
    "stderr_sink_level": ("ERROR", {"logger.stderr_sink_level": "ERROR"}),
}
ALL_WEIGHTS = {
    "peft": ("none", {"peft": None, "optimizer.lr": 5.0e-6}),
    "precision_config": (
        "bf16_mixed",
        {"mixed_precision.params_dtype": "bfloat16", "mixed_precision.grad_dtype": "float32"},
    ),
    "pipeline_dtype": ("bf16", {}),
    "hf_path": ("hf", {"checkpoint.hf_path": "hf", "tokenizer.model": "hf"}),
    "validation": (
        {"eval_iters": 3, "eval_interval": 4, "full_validation": True},
        {
            "train.evaluation.eval_iters": 3,
            "train.evaluation.eval_interval": 4,
            "train.evaluation.full_validation": True,
        },
    ),
    "sink_level": ("ERROR", {"logger.file_sink_level": "ERROR", "logger.stderr_sink_level": "ERROR"}),
    "use_turbo_attention": (True, {"model.fusion.attention": True}),
    "use_turbo_rms_norm": (True, {"model.fusion.rms_norm": True}),
    "skip_save": (True, {"checkpoint.save": None, "checkpoint.save_interval": None}),
    "comm_overlap_config": (
        {"overlap_grad_reduce": True, "bucket_size": 1000},
        {"ddp.overlap_grad_reduce": True, "ddp.bucket_size": 1000, "ddp.overlap_param_gather": True},
    ),
}
DIVIDED = {
    "num_layers": (4, {"model.num_layers": 4}),
    "tensor_model_parallel_size": (2, {"model.parallel.tensor_model_parallel_size": 2}),
    "pipeline_model_parallel_size": (2, {"model.parallel.pipeline_model_parallel_size": 2}),
    "virtual_pipeline_model_parallel_size": (2, {"model.pipeline.num_chunks": 2}),
    "context_parallel_size": (2, {"model.parallel.context_parallel_size": 2}),
    "sequence_parallel": (True, {"model.parallel.sequence_parallel": True}),
    "pretrained_checkpoint": ("base", {"checkpoint.hf_path": None}),
    "mixed_precision": (
        {"bf16": True, "fp32": False, "params_dtype": None, "pipeline_dtype": None, "grad_reduce_in_fp32": False},
        {"mixed_precision.params_dtype": "bfloat16", "mixed_precision.grad_dtype": "bfloat16"},
    ),
    "comm_overlap_config": (
        {"overlap_p2p_comm": False, "tp_comm_overlap": True},
        {"model.pipeline.communication_method": "batch_p2p"},
    ),
}
EXPERTS = {
    "num_experts": (4, {"model.moe.num_experts": 4}),
    "use_turbo_grouped_gemm": (True, {"model.fusion.grouped_gemm": True}),
    "use_turbo_fused_act_with_probs": (True, {"model.fusion.weighted_activation": True}),
    "expert_model_parallel_size": (2, {"model.parallel.expert_model_parallel_size": 2}),
    "use_turbo_deepep": (True, {"model.moe.token_dispatcher": "flex"}),
}
SYNC_FREE = {
    "num_experts": (4, {}),
    "expert_model_parallel_size": (2, {}),
    "use_turbo_grouped_gemm": (True, {}),
    "turbo_sync_free_moe_stage": (2, {"model.moe.token_dispatcher": "flex"}),
}
SHARDED = {
    "use_megatron_fsdp": (True, {"ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params"}),
    "use_distributed_optimizer": (False, {"ddp.use_distributed_optimizer": True}),
    "precision_config": (
        "fp16_mixed",
        {"mixed_precision.params_dtype": "float16", "mixed_precision.grad_dtype": "float16"},
    ),
}
SAID = {
    "use_turbo_parallel_linear": (True, "use_turbo_gemm true (exp.yaml:1 as use_turbo_parallel_linear) has no effect"),
    "moe_use_fused_router_with_aux_score": (True, "moe_use_fused_router_with_aux_score true (exp.yaml:1) has no effect"),
    "turbo_deepep_num_cu": (8, "turbo_deepep_num_cu 8 (exp.yaml:1) has no effect"),
    "turbo_deepep_use_comm_stream": (True, "turbo_deepep_use_comm_stream true (exp.yaml:1) has no effect"),
}
"""Keys that change nothing, and what the run says of them."""
REFUSED = {
    "enable_turbo_attention_float8": (True, "enable_turbo_attention_float8 is not implemented yet: it is true (exp.yaml:1)"),
    "use_turbo_grouped_mlp": (False, "use_turbo_grouped_mlp has been removed; please use use_turbo_grouped_gemm"),
    "trainable": (False, "trainable false (exp.yaml:1): this module is not meant to be trained; set trainable: true."),
    "optimizer": ("shampoo", "optimizer shampoo (exp.yaml:1) must be one of"),
    "pipeline_dtype": ("fp16", "pipeline_dtype fp16 (exp.yaml:1) must be fp32 or null"),
}
FROM_NOTHING = {
    "flavor": (TRAINING, {"dataset.sft": None}),
    "stage": ("pretrain", {}),
    "data_paths": (["a"], {"dataset.mock_data": False}),
    "name": ("n", {}),
    "dir": ("d", {"checkpoint.save": "out/w/u/e/d/n/checkpoints"}),
    "use_null_tokenizer": (True, {"tokenizer.type": "NullTokenizer"}),
}
SWITCHED_OFF = {
    "enable_primus_turbo": (False, {"model.fusion.rms_norm": False}),
    "use_turbo_rms_norm": (True, {}),
    "recipe": ("qwen.qwen3", {"model.num_layers": 28}),
    "flavor": ("qwen3_600m_finetune_config", {"model.hidden_size": 1024}),
}
MADE_UP = {
    "flavor": (TRAINING, {}),
    "stage": ("pretrain", {}),
    "mock": (True, {"dataset.mock_data": True}),
}


def build(world_size: int, **words: Any) -> Built:
    Path("hf").mkdir(exist_ok=True)
    module = {
        "framework": "megatron_bridge",
        "config": "sft_trainer.yaml",
        "model": "vanilla_gpt.yaml",
        "overrides": {"flavor": TUNING, "hf_path": "hf", **words},
    }
    identity = {"work_group": "w", "user_name": "u", "exp_name": "e", "workspace": "out"}
    Path("exp.yaml").write_text(json.dumps({**identity, "modules": {"post_trainer": module}}))
    experiment = load_experiment(Path("exp.yaml"), [], {})
    return MegatronBridgeBuilder(experiment, experiment.modules["post_trainer"], world_size, experiment.run_folder).build()


def at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config.removeprefix(f"{Path.cwd()}/") if isinstance(config, str) else config


@pytest.mark.parametrize(
    ("world_size", "words"),
    [
        (1, LORA),
        (2, ALL_WEIGHTS),
        (8, DIVIDED),
        (2, EXPERTS),
        (2, SYNC_FREE),
        (2, SHARDED),
        (1, FROM_NOTHING),
        (1, SWITCHED_OFF),
        (1, MADE_UP),
    ],
    ids=["lora", "all weights", "divided", "experts", "sync-free", "sharded", "from nothing", "switched off", "made up"],
)
def test_key_reaches_the_engine(world_size, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    built = build(world_size, **{name: value for name, (value, _) in words.items()})
    expected = {path: value for _, fields in words.values() for path, value in fields.items()}
    assert {path: at(built.config, path) for path in expected} == expected


def test_run_says_which_keys_change_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    notices = build(1, **{name: value for name, (value, _) in SAID.items()}).notices
    for _, said in SAID.values():
        assert any(line.startswith(said) for line in notices), (said, notices)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"flavor": TRAINING, "stage": "pretrain"},
            "hf_path (exp.yaml:1) names no tokenizer here: recipe gpt.vanilla_gpt pretrains on numbers; set "
            "use_null_tokenizer: false.",
        ),
        (
            {"precision_config": {"hysteresis": 3}},
            "precision_config (exp.yaml:1 as precision_config.hysteresis) names no dtype, so weights are fp32; bf16: true "
            "beside it says otherwise.",
        ),
        (
            {"precision_config": {"bf16": True, "autocast_enabled": True}},
            "mixed_precision.autocast_enabled true (exp.yaml:1 as precision_config.autocast_enabled) has no effect: weights "
            "have the dtype that they compute in.",
        ),
        (
            {"wandb_entity": "e"},
            "wandb_entity e (exp.yaml:1) has no effect: disable_wandb true (recipe gpt.vanilla_gpt: wandb_project null).",
        ),
        (
            {"wandb_project": "", "wandb_entity": "e"},
            'wandb_entity e (exp.yaml:1) has no effect: disable_wandb true (exp.yaml:1: wandb_project "").',
        ),
        (
            {"train_iters": 3, "train": {"train_iters": 4}},
            "train_iters 3 (exp.yaml:1) has no effect: train.train_iters 4 (exp.yaml:1) goes before it.",
        ),
    ],
)
def test_run_says_which_words_are_not_what_they_seem(words, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert said in build(1, **words).notices


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/nowhere", "hf_path /nowhere: there is no such folder, and it is no name on the hub, OWNER/MODEL; correct the path"),
        (".", "/config.json cannot be read: No such file or directory; give the folder of a Hugging Face model (hf_path,"),
    ],
)
def test_a_folder_that_gives_no_shape_is_told_with_its_place_and_what_else_is_wrong(folder, said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        build(1, recipe="auto", flavor="finetune_config", hf_path=folder, train_iters="many")
    wrong, shape = refused.value.problems
    assert wrong == "train_iters many (exp.yaml:1) must be an integer or null."
    assert said in shape
    assert shape.endswith("exp.yaml:1)")


def test_run_refuses_keys_that_are_not_built(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        build(1, **{name: value for name, (value, _) in REFUSED.items()})
    for _, said in REFUSED.values():
        assert any(line.startswith(said) for line in refused.value.problems), (said, refused.value.problems)


def test_every_documented_key_is_tested_here():
    tables = (LORA, ALL_WEIGHTS, DIVIDED, EXPERTS, SYNC_FREE, SHARDED, FROM_NOTHING, SWITCHED_OFF, MADE_UP, SAID, REFUSED)
    assert set(KEYS) <= {name for table in tables for name in table}


WRONG = {"bool": "perhaps", "int": "many", "float": "much", "str": [1], "path": [1], "list[str]": 3.5, "dict": 3}
"""A value that is not of the type."""


def test_every_documented_key_refuses_another_type(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kinds = {name: row.type.removesuffix("?").split("|") for name, row in KEYS.items()}
    wrong = {
        name: next(WRONG[kind] for kind in reversed(words) if kind in WRONG)
        for name, words in kinds.items()
        if words != ["any"]
    }
    del wrong["recipe"], wrong["flavor"]
    # Values are looked at in several passes, each of which tells all that it finds.
    while wrong:
        with pytest.raises(ConfigError) as refused:
            build(1, **wrong)
        told = {name for name in wrong if any(name in line for line in refused.value.problems)}
        assert told, (list(wrong), refused.value.problems)
        wrong = {name: value for name, value in wrong.items() if name not in told}
