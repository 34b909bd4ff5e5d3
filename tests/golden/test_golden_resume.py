"""A run that is stopped and resumed is the run that was not: bitwise, whatever is switched on."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train, write_corpus

from primus.engine.checkpoint.start import find_start
from primus.engine.config import ConfigContainer
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.parallel.mesh import build_mesh
from primus.engine.train.assemble import assemble
from primus.engine.train.pretrain import with_vocabulary

pytestmark = pytest.mark.slow  # several whole runs each

COUNTERS = ("consumed_samples", "global_batch_size", "validation_loss")
EXACT = ("lm_loss", "grad_norm", "learning_rate", "loss_scale", "skipped_iterations", *COUNTERS)

FSDP = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (1, {}),
    "dropout": (1, {"hidden_dropout": 0.1, "attention_dropout": 0.1}),
    "sgd": (1, {"optimizer": "sgd", "lr": 0.05}),
    "torch_format": (1, {"ckpt_format": "torch"}),
    "bf16": (1, {"bf16": True}),
    "fp16": (1, {"fp16": True, "initial_loss_scale": 65536.0}),
    "fp16_overflowing": (1, {"fp16": True, "initial_loss_scale": 4294967296.0, "hysteresis": 2}),
    "ramp_up": (1, {"rampup_batch_size": "2 2 12"}),
    "cyclic": (1, {"dataloader_type": "cyclic"}),
    "dp2_distributed_optimizer": (2, {"use_distributed_optimizer": True}),
    "dp2_overlapped": (2, {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_num_buckets": 4}),
    "zero2": (2, {**FSDP, "data_parallel_sharding_strategy": "optim_grads"}),
    "zero3_bf16_dropout": (2, {**FSDP, "bf16": True, "hidden_dropout": 0.1, "init_model_with_meta_device": True}),
    "zero3_torch_format": (2, {**FSDP, "ckpt_format": "torch"}),
    "pp2_interleaved": (2, {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 2, "num_layers": 4}),
    "cp2_dropout": (2, {"context_parallel_size": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1}),
    "dp2_torch_format": (2, {"ckpt_format": "torch"}),
    "tp2_sequence_parallel_dropout": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True, "hidden_dropout": 0.1}),
    "cp2_gathered_dropout": (2, {"context_parallel_size": 2, "cp_comm_type": "allgather", "attention_dropout": 0.1}),
    "loader_workers": (1, {"num_workers": 2}),
}


def exact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in EXACT if name in row} for row in rows]


@pytest.mark.parametrize("case", list(CASES))
def test_resumed_run_is_bitwise_the_straight_run(case: str, tmp_path: Path) -> None:
    ranks, overrides = CASES[case]
    save = {**overrides, "save": "ckpt", "save_interval": 100}
    straight = train(tmp_path, "straight", save, ranks=ranks)
    train(tmp_path, "cut", {**save, "exit_interval": 3}, ranks=ranks)
    resumed = train(tmp_path, "cut", {**save, "auto_continue_train": True}, ranks=ranks)
    assert [row["iteration"] for row in resumed] == [1, 2, 3, 4, 5, 6]
    assert exact(resumed) == exact(straight)
    ends = [state_at(tmp_path, name, ranks, overrides) for name in ("straight", "cut")]
    assert ends[0] == ends[1], "the last update differs"


def state_at(folder: Path, name: str, ranks: int, overrides: dict[str, Any]) -> list[dict[str, list[float]]]:
    """Return weights and optimizer state of a run's newest checkpoint, by rank."""

    def look(_rank: int, config: ConfigContainer) -> dict[str, list[float]]:
        config = with_vocabulary(config, build_tokenizer(config.tokenizer))
        mesh = build_mesh(config.model.parallel, config.dist, torch.device("cpu"))
        parts = assemble(config, mesh, find_start(config.checkpoint))
        assert parts.state.iteration == 6
        shards = {**parts.trainer.buffers.weight_shards(), **parts.trainer.optimizer.state_shards()}
        return {key: [x for chunk in part.chunks for x in chunk.data.flatten().tolist()] for key, part in shards.items()}

    source = {"load": str(folder / "g" / "u" / name / "ckpt"), "finetune": False}
    return run_ranks(look, ranks, build_container(folder, f"look-{name}", ranks, {**overrides, **source}))


def test_resume_in_the_middle_of_an_epoch_and_of_validation(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=40)
    data = {
        "mock_data": False,
        "data_path": str(corpus),
        "split": "70,30,0",
        "eval_interval": 2,
        "eval_iters": 1,
        "save": "ckpt",
        "save_interval": 100,
        "train_iters": 8,
    }
    straight = train(tmp_path, "straight", data)
    train(tmp_path, "cut", {**data, "exit_interval": 5})
    resumed = train(tmp_path, "cut", {**data, "auto_continue_train": True})
    assert exact(resumed) == exact(straight)
    assert [row["iteration"] for row in resumed if "validation_loss" in row] == [2, 4, 6, 8]


def test_load_resumes_and_finetune_starts_over_from_the_weights(tmp_path: Path) -> None:
    straight = train(tmp_path, "straight", {"save": "ckpt", "save_interval": 3, "train_iters": 6})
    source = {"load": str(tmp_path / "g" / "u" / "straight" / "ckpt"), "ckpt_step": 3}
    resumed = train(tmp_path, "resumed", source)
    assert exact(resumed) == exact(straight[3:])
    tuned = train(tmp_path, "tuned", {**source, "finetune": True})
    assert [row["iteration"] for row in tuned] == [1, 2, 3, 4, 5, 6]
    assert tuned[0]["consumed_samples"] == 8
    assert tuned[0]["lm_loss"] < straight[0]["lm_loss"]


def test_no_load_optim_keeps_weights_and_counters_only(tmp_path: Path) -> None:
    straight = train(tmp_path, "straight", {"save": "ckpt", "save_interval": 3})
    source = {"load": str(tmp_path / "g" / "u" / "straight" / "ckpt"), "ckpt_step": 3, "no_load_optim": True}
    resumed = train(tmp_path, "resumed", source)
    assert resumed[0]["iteration"] == 4
    assert resumed[0]["lm_loss"] == straight[3]["lm_loss"]
    assert resumed[1]["lm_loss"] != straight[4]["lm_loss"]


@pytest.mark.parametrize(
    "more",
    [{}, {"no_load_optim": True, "load_main_params_from_ckpt": True, "dist_ckpt_strictness": "ignore_all"}],
    ids=["all", "main"],
)
def test_weights_that_were_saved_without_main_weights_give_them(more: dict[str, Any], tmp_path: Path) -> None:
    """A bf16 run from an fp32 checkpoint: its fresh main weights must not overwrite what was loaded."""
    keys = {"save": str(tmp_path / "ckpt"), "save_interval": 6, "lr": 0.01, "min_lr": 0.01}
    train(tmp_path, "first", keys)
    still = {"load": keys["save"], "lr": 0.0, "min_lr": 0.0, "train_iters": 8, "override_opt_param_scheduler": True}
    exact = train(tmp_path, "fp32", {**keys, **still, "save": None})
    rows = train(tmp_path, "bf16", {**keys, **still, "bf16": True, "dist_ckpt_strictness": "log_all", **more})
    assert exact[0]["lm_loss"] < 4.0
    for row, expected in zip(rows, exact, strict=True):
        assert row["lm_loss"] == pytest.approx(expected["lm_loss"], abs=0.02)


BETWEEN: dict[str, tuple[int, dict[str, Any]]] = {
    "global": (1, {"non_persistent_ckpt_type": "global", "hidden_dropout": 0.1, "attention_dropout": 0.1}),
    "local": (
        2,
        {
            "non_persistent_ckpt_type": "local",
            "non_persistent_local_ckpt_dir": "node",
            "use_distributed_optimizer": True,
            "bf16": True,
        },
    ),
    "local_replicated": (
        2,
        {
            "non_persistent_ckpt_type": "local",
            "non_persistent_local_ckpt_dir": "node",
            "non_persistent_local_ckpt_algo": "atomic",
            "replication": True,
            "replication_jump": 1,
            "tensor_model_parallel_size": 2,
            "hidden_dropout": 0.1,
        },
    ),
}


@pytest.mark.parametrize("case", list(BETWEEN))
def test_a_run_goes_on_to_the_bit_from_a_checkpoint_in_between(case: str, tmp_path: Path) -> None:
    ranks, overrides = BETWEEN[case]
    saving = {"save": "ckpt", "save_interval": 5, "non_persistent_save_interval": 2}
    keys = {**overrides, **saving, "lr_decay_iters": 6, "override_opt_param_scheduler": True}
    straight = train(tmp_path, "straight", keys, ranks=ranks)
    train(tmp_path, "cut", {**keys, "train_iters": 5, "disable_last_saving": True}, ranks=ranks)
    assert not (tmp_path / "g" / "u" / "cut" / "ckpt" / "latest_checkpointed_iteration.txt").exists()
    if case == "local_replicated":
        (lost,) = (tmp_path / "g" / "u" / "cut" / "node").glob("run_*/rank_00001")
        shutil.rmtree(lost)
    kept = tmp_path / "g" / "u" / "cut" / "metrics.jsonl"
    before = kept.read_text().splitlines()
    resumed = train(tmp_path, "cut", {**keys, "auto_continue_train": True}, ranks=ranks)
    after = kept.read_text().splitlines()
    assert [one == other for one, other in zip(before, after, strict=False)] == [True] * 4 + [False], "it went on from 4"
    assert [row["iteration"] for row in resumed] == [1, 2, 3, 4, 5, 6]
    assert exact(resumed) == exact(straight)
