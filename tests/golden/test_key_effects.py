"""Keys of the experiment file, through the front door, change what a run does: those that no other test sets by name."""

import gc
import importlib
import json
import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train, write_corpus
from torch import Tensor

from primus.backends.megatron.keys import KEYS
from primus.engine.config import ConfigContainer
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.optim.watch import SpikeWatch
from primus.engine.parallel.mesh import build_mesh
from primus.engine.parallel.sharding import global_parameters
from primus.engine.train.assemble import Parts, assemble
from primus.engine.train.pretrain import pretrain, with_vocabulary

pytestmark = pytest.mark.slow  # whole runs

TENSORBOARD: dict[str, Any] = {"disable_tensorboard": False, "tensorboard_dir": "tb", "tensorboard_log_interval": 1}


def test_every_live_key_is_named_by_a_test() -> None:
    words: set[str] = set()
    for file in Path(__file__).parents[1].rglob("*.py"):
        words |= set(re.findall(r"\w+", file.read_text()))
    assert [key.name for key in KEYS.values() if key.status == "live" and key.name.split(".")[-1] not in words] == []


def parts_of(config: ConfigContainer) -> Parts:
    """Return the assembled parts of this rank."""
    config = with_vocabulary(config, build_tokenizer(config.tokenizer))
    return assemble(config, build_mesh(config.model.parallel, config.dist, torch.device("cpu")), None)


def weights(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a run's first weights."""

    def build(_rank: int, config: ConfigContainer) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in global_parameters(parts_of(config).chunks)}

    (first,) = run_ranks(build, 1, build_container(folder, "run", 1, overrides))
    return dict(first)


def test_init_method_std_is_the_deviation_of_fresh_matrices(tmp_path: Path) -> None:
    drawn = weights(tmp_path, {"init_method_std": 0.5})["decoder.layers.0.mlp.linear_fc1.weight"]
    assert drawn.std().item() == pytest.approx(0.5, rel=0.05)


def test_init_method_xavier_uniform_bounds_fresh_matrices(tmp_path: Path) -> None:
    drawn = weights(tmp_path, {"init_method_xavier_uniform": True})["decoder.layers.0.mlp.linear_fc1.weight"]
    rows, columns = drawn.shape
    bound = (6.0 / (rows + columns)) ** 0.5
    assert 0.95 * bound < drawn.abs().max().item() <= bound


def test_perform_initialization_false_draws_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = importlib.import_module("primus.engine.model.builder")
    monkeypatch.setattr(builder, "initialise", lambda *_, **__: pytest.fail("weights were drawn"))
    weights(tmp_path, {"perform_initialization": False})


def test_apply_layernorm_1p_stores_gains_minus_one(tmp_path: Path) -> None:
    keys = {"normalization": "LayerNorm", "apply_layernorm_1p": True}
    assert not weights(tmp_path, keys)["decoder.final_layernorm.weight"].any()


@pytest.mark.parametrize(("key", "value"), [("apply_residual_connection_post_layernorm", True), ("adam_eps", 0.1)])
def test_the_mathematics_follows(key: str, value: object, tmp_path: Path) -> None:
    plain, changed = (train(tmp_path, name, {"train_iters": 2, **keys}) for name, keys in (("a", {}), ("b", {key: value})))
    assert plain[1]["lm_loss"] != changed[1]["lm_loss"]
    assert (plain[0]["lm_loss"] == changed[0]["lm_loss"]) == (key == "adam_eps")


def recorded(folder: Path, where: str, overrides: Mapping[str, Any], ranks: int = 1) -> list[tuple[Any, ...]]:
    """Train and return the arguments of every call of `where` (module:name) that rank 0 made; keywords come last."""
    module_name, name = where.split(":")

    def run(_rank: int, config: ConfigContainer) -> list[tuple[Any, ...]]:
        module, calls = importlib.import_module(module_name), []
        original = getattr(module, name)

        def record(*arguments: Any, **keywords: Any) -> Any:
            calls.append(
                (*(a for a in arguments if isinstance(a, int | str | timedelta)), {k: _plain(v) for k, v in keywords.items()})
            )
            return original(*arguments, **keywords)

        setattr(module, name, record)
        pretrain(config, process_start=0.0)
        return calls

    return list(run_ranks(run, ranks, build_container(folder, "run", ranks, {"train_iters": 1, **overrides}))[0])


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str | timedelta | None) else type(value).__name__


def test_distributed_timeout_minutes_bounds_collectives(tmp_path: Path) -> None:
    keys = {"distributed_timeout_minutes": 3, "tensor_model_parallel_size": 2}
    calls = recorded(tmp_path, "torch.distributed:new_group", keys, ranks=4)
    assert len(calls) > 1
    assert all(call[-1]["timeout"] == timedelta(minutes=3) for call in calls)


@pytest.mark.parametrize(("sizes", "exchange", "ring"), [([2, 2], (2, 3), (1, 3)), ([1, 4], (3,), (0, 1, 2, 3))])
def test_cp_comm_type_chooses_each_layers_way_and_sizes_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], exchange: tuple[int, ...], ring: tuple[int, ...]
) -> None:
    """By the ranks that the last of four reaches in `hierarchical_context_parallel_sizes`."""
    builder = importlib.import_module("primus.engine.model.build.attention")
    monkeypatch.setattr(builder, "RingAttention", lambda group, *_, **__: ("ring", group.ranks))
    monkeypatch.setattr(builder, "GatheredAttention", lambda group, *_, **__: ("gather", group.ranks))
    monkeypatch.setattr(builder, "ExchangedAttention", lambda group, inner: ("exchange", group.ranks, inner))
    monkeypatch.setattr(builder, "FusedAttention", lambda *_, **__: "whole")

    def cores(_rank: int, config: ConfigContainer) -> list[Any]:
        (model,) = parts_of(config).chunks
        return [layer.self_attention.core_attention for layer in model.decoder.layers.values()]

    ways = ["a2a", "p2p", "a2a+p2p", "allgather"]
    keys = {"num_layers": 4, "context_parallel_size": 4, "cp_comm_type": ways, "hierarchical_context_parallel_sizes": sizes}
    everyone = (0, 1, 2, 3)
    assert run_ranks(cores, 4, build_container(tmp_path, "run", 4, keys))[3] == [
        ("exchange", everyone, "whole"),
        ("ring", everyone),
        ("exchange", exchange, ("ring", ring)),
        ("gather", everyone),
    ]


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_num_distributed_optimizer_instances_is_how_often_the_state_is_held(tmp_path: Path, instances: int) -> None:
    def held(_rank: int, config: ConfigContainer) -> tuple[int, int]:
        parts = parts_of(config)
        assert parts.trainer is not None
        states = parts.trainer.optimizer.state_shards().items()
        moments = [chunk for name, shards in states if ".exp_avg." in name for chunk in shards.chunks]
        return sum(chunk.data.numel() for chunk in moments), sum(p.numel() for _, p in global_parameters(parts.chunks))

    keys = {"use_distributed_optimizer": True, "num_distributed_optimizer_instances": instances}
    results = run_ranks(held, 4, build_container(tmp_path, "run", 4, keys))
    whole = results[0][1]
    assert sum(size for size, _ in results) == instances * whole
    assert [size for size, _ in results] == pytest.approx([instances * whole / 4] * 4, rel=0.02)


def test_num_dataset_builder_threads_build_parts_side_by_side(tmp_path: Path) -> None:
    prefix = write_corpus(tmp_path / "corpus", documents=20)
    data = {"mock_data": False, "data_path": f"0.5 {prefix} 0.5 {prefix}", "split": "1"}
    calls = recorded(tmp_path, "primus.engine.data.datasets:ThreadPoolExecutor", {**data, "num_dataset_builder_threads": 3})
    assert {call[0] for call in calls} == {3}


def test_mmap_bin_files_false_reads_instead(tmp_path: Path) -> None:
    data = {"mock_data": False, "data_path": str(write_corpus(tmp_path / "corpus", documents=20)), "split": "1"}
    mapped = train(tmp_path, "mapped", {**data, "train_iters": 1})
    (call,) = recorded(tmp_path, "primus.engine.data.datasets:IndexedDataset", {**data, "mmap_bin_files": False})
    assert call[-1] == {"mmap": False}
    (row,) = map(json.loads, (tmp_path / "g" / "u" / "run" / "metrics.jsonl").read_text().splitlines())
    assert row["lm_loss"] == mapped[0]["lm_loss"]


def test_tensorboard_queue_size_reaches_the_writer(tmp_path: Path) -> None:
    (call,) = recorded(tmp_path, "torch.utils.tensorboard:SummaryWriter", {**TENSORBOARD, "tensorboard_queue_size": 7})
    assert call[-1] == {"max_queue": 7}


def test_log_memory_to_tensorboard_adds_memory(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, "run", {"train_iters": 1, **TENSORBOARD, "log_memory_to_tensorboard": True})
    (events,) = (tmp_path / "g" / "u" / "run").rglob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    assert "mem-max-resident-bytes" in accumulator.Tags()["scalars"]


def test_wandb_entity_reaches_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    keys = {"disable_wandb": False, "wandb_project": "p", "wandb_entity": "the-team"}
    (call,) = recorded(tmp_path, "wandb:init", keys)
    assert call[-1]["entity"] == "the-team"


@pytest.mark.parametrize(
    ("key", "sign"), [("torch_profiler_record_shapes", "Input Dims"), ("torch_profiler_with_stack", "python_function")]
)
def test_the_profiler_records_what_it_is_asked_for(key: str, sign: str, tmp_path: Path) -> None:
    off = {"torch_profiler_record_shapes": False, "torch_profiler_with_stack": False, "torch_profiler_use_gzip": False}
    window = {"profile": True, "use_pytorch_profiler": True, "profile_step_start": 1, "profile_step_end": 2, "train_iters": 2}
    for name, keys in (("without", {}), ("with", {key: True})):
        train(tmp_path, name, {**window, **off, **keys})
        (trace,) = (tmp_path / "g" / "u" / name).rglob("*.pt.trace.json")
        assert (f'"{sign}"' in trace.read_text()) == (name == "with")


def watched(folder: Path, overrides: Mapping[str, Any]) -> list[str]:
    """Train with watches that learn from one observation and call a tenth of it a spike; return what was warned of."""

    def run(_rank: int, config: ConfigContainer) -> list[str]:
        module = importlib.import_module("primus.engine.train.pretrain")
        module.SpikeWatch = lambda: SpikeWatch(factor=0.1, num_samples=1)  # type: ignore[attr-defined]
        lines: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("primus").addHandler(handler)
        pretrain(config, process_start=0.0)
        return [line for line in lines if line.startswith("unexpectedly large")]

    return list(run_ranks(run, 1, build_container(folder, "run", 1, {"train_iters": 3, **overrides}))[0])


@pytest.mark.parametrize(("key", "context"), [("check_for_spiky_loss", "loss"), ("check_for_large_grads", "grads")])
def test_spikes_are_warned_of_when_asked(key: str, context: str, tmp_path: Path) -> None:
    assert watched(tmp_path, {key: False}) == []
    lines = watched(tmp_path, {key: True})
    assert len(lines) >= 2
    assert all(line.startswith(f"unexpectedly large {context}") for line in lines)


def test_manual_gc_eval_collects_around_evaluations(tmp_path: Path) -> None:
    def run(_rank: int, config: ConfigContainer) -> int:
        calls: list[int] = []
        gc.collect = lambda *_, **__: calls.append(1) or 0  # type: ignore[assignment,func-returns-value]
        pretrain(config, process_start=0.0)
        return len(calls)

    keys = {"manual_gc": True, "train_iters": 2, "eval_iters": 1, "eval_interval": 1}
    without, around = (
        run_ranks(run, 1, build_container(tmp_path, f"run{flag}", 1, {**keys, "manual_gc_eval": flag}))[0]
        for flag in (False, True)
    )
    assert around == without + 2 * 2


def test_data_sharding_gives_each_rank_a_part_of_the_epoch(tmp_path: Path) -> None:
    data = {"mock_data": False, "data_path": str(write_corpus(tmp_path / "corpus", documents=60)), "split": "1"}
    keys = {**data, "dataloader_type": "cyclic", "train_iters": 2}
    sharded, shared = (train(tmp_path, f"s{flag}", {**keys, "data_sharding": flag}, ranks=2) for flag in (True, False))
    assert sharded[0]["lm_loss"] != shared[0]["lm_loss"]


def test_log_keys_shape_the_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = {"log_interval": 2, "log_avg_skip_iterations": 1, "log_avg_reset_interval": 2, "timing_log_level": 2}
    rows = train(tmp_path, "run", {**keys, "log_throughput": False, "train_iters": 8})
    assert [row["iteration"] for row in rows] == [2, 4, 6, 8]
    assert ["iteration_time_ms_average" in row for row in rows] == [False, True, True, True]
    assert rows[1]["iteration_time_ms_average"] == rows[1]["iteration_time_ms"]
    assert rows[3]["iteration_time_ms_average"] == rows[3]["iteration_time_ms"], "the block starts again after two records"
    assert "timer/forward-compute" in rows[0]
    assert "TFLOP/s" not in capfd.readouterr().err
    coarse = train(tmp_path, "coarse", {"timing_log_level": 1, "train_iters": 1})
    assert "timer/forward-backward" in coarse[0]
    assert "timer/forward-compute" not in coarse[0]


def test_ddp_pad_buckets_rounds_buckets_up(tmp_path: Path) -> None:
    def sizes(_rank: int, config: ConfigContainer) -> list[int]:
        return [owned.grad.numel() for owned in parts_of(config).trainer.buffers.ranges()]

    def halves(flag: bool) -> list[int]:
        keys = {"use_distributed_optimizer": True, "ddp_pad_buckets_for_high_nccl_busbw": flag}
        return list(run_ranks(sizes, 2, build_container(tmp_path, f"run{flag}", 2, keys))[0])

    assert all(2 * size % 65536 == 0 for size in halves(True))
    assert not all(2 * size % 65536 == 0 for size in halves(False))


def test_ckpt_fully_parallel_save_spreads_replicated_tensors(tmp_path: Path) -> None:
    def bytes_by_rank(flag: bool) -> list[int]:
        keys = {"save": "ckpt", "ckpt_fully_parallel_save": flag, "use_distributed_optimizer": False, "train_iters": 1}
        train(tmp_path, f"run{flag}", keys, ranks=2)
        folder = tmp_path / "g" / "u" / f"run{flag}" / "ckpt" / "iter_0000001"
        return [sum(file.stat().st_size for file in folder.glob(f"__{rank}_*.distcp")) for rank in (0, 1)]

    spread, alone = bytes_by_rank(True), bytes_by_rank(False)
    assert spread[1] > 0.9 * spread[0]
    assert alone[1] < 0.1 * alone[0]
