"""Post-validation: steps that go ahead of the global norm end as steps that wait for it, through overflows and clipping."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, train

from primus.engine.config import ConfigContainer
from primus.engine.optim import early
from primus.engine.parallel.data import GradientBuffers
from primus.engine.train.pretrain import pretrain
from primus.engine.train.sinks import Report
from primus.engine.train.stages import _Forward
from primus.engine.train.step import TrainStep

Keys = dict[str, Any]

FP16: Keys = {"fp16": True, "initial_loss_scale": 1024.0}
RUN: Keys = {
    "global_batch_size": 4,
    "pipeline_model_parallel_size": 2,
    "patch_zero_bubble": True,
    "untie_embeddings_and_output_weights": True,
    "train_iters": 9,
    "clip_grad": 3.0,
    "lr": 1.0e-2,
    "eval_interval": 4,
    "eval_iters": 1,
}
"""Two stages, two forwards of the first one before the norm comes back."""
AHEAD: Keys = {"enable_optimizer_post_validation": True}
KEPT = ("iteration", "consumed_samples", "lm_loss", "learning_rate", "loss_scale", "skipped_iterations", "validation_loss")


class Incidents:
    """Changes the gradients of the last stage at some iterations: the other stages see nothing of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.factors = {3: 30.0, 5: math.inf, 7: 30.0, 8: 1e4}
        """By iteration."""
        self.iteration = 0
        self.num_forwards = 0
        """Of the step that is under way."""
        call, finish, forward = TrainStep.__call__, GradientBuffers.finish_grad_sync, _Forward.__call__

        def begun(step: TrainStep, batches: Iterator[Any], **more: Any) -> Any:
            self.iteration, self.num_forwards = more["iteration"], 0
            return call(step, batches, **more)

        def changed(buffers: GradientBuffers) -> None:
            finish(buffers)
            pp, factor = buffers._mesh.pp, self.factors.get(self.iteration, 1.0)
            if pp.index == pp.size - 1:
                for owned in buffers.ranges():
                    owned.grad[:1].fill_(factor) if math.isinf(factor) else owned.grad.mul_(factor)

        def counted(run: _Forward, *arguments: Any) -> Any:
            self.num_forwards += 1
            return forward(run, *arguments)

        monkeypatch.setattr(TrainStep, "__call__", begun)
        monkeypatch.setattr(GradientBuffers, "finish_grad_sync", changed)
        monkeypatch.setattr(_Forward, "__call__", counted)
        monkeypatch.setattr(early, "_PATIENCE", 1)


@pytest.fixture
def incidents(monkeypatch: pytest.MonkeyPatch) -> Incidents:
    return Incidents(monkeypatch)


def numbers(rows: list[Keys]) -> list[list[Any]]:
    return [[row.get(key) for key in KEPT] for row in rows]


def norms(rows: list[Keys]) -> list[float]:
    return [row["grad_norm"] for row in rows if "grad_norm" in row]


def test_a_step_ahead_ends_as_one_that_waits(tmp_path: Path, incidents: Incidents) -> None:
    keys = {
        **RUN,
        **FP16,
        "num_layers": 8,
        "pipeline_model_parallel_size": 4,
        "zero_bubble_v_schedule": True,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    }
    waiting = train(tmp_path, "waiting", keys, ranks=4)
    ahead = train(tmp_path, "ahead", {**keys, **AHEAD}, ranks=4)
    assert [row["skipped_iterations"] for row in waiting if "lm_loss" in row] == [int(i in (5, 8)) for i in range(1, 10)]
    assert numbers(ahead) == numbers(waiting)
    # Sums over stages are in their order; a collective has its own.
    assert norms(ahead) == pytest.approx(norms(waiting), rel=1e-14)


def test_a_checkpoint_holds_what_was_settled(tmp_path: Path, incidents: Incidents) -> None:
    """The step that is saved is the one that has to be taken back; replicas share the optimizer state."""
    sharded = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    keys = {**RUN, **FP16, **sharded, "global_batch_size": 8}
    straight = train(tmp_path, "straight", keys, ranks=4)
    save = {**keys, **AHEAD, "save": "ckpt", "save_interval": 100}
    train(tmp_path, "cut", {**save, "exit_interval": 5}, ranks=4)
    resumed = train(tmp_path, "cut", {**save, "auto_continue_train": True}, ranks=4)
    assert numbers(resumed) == numbers(straight)


def test_the_inverse_takes_back_to_rounding(tmp_path: Path, incidents: Incidents) -> None:
    incidents.factors = {3: 30.0, 7: 30.0}
    keys = {**RUN, "use_distributed_optimizer": False}
    waiting = train(tmp_path, "waiting", keys, ranks=2)
    ahead = train(tmp_path, "ahead", {**keys, **AHEAD, "enable_exactly_numeric_match": False}, ranks=2)
    assert numbers(ahead) != numbers(waiting), "a copy is exact"
    for key in ("lm_loss", "validation_loss"):
        found, expected = ([row[key] for row in rows if key in row] for rows in (ahead, waiting))
        assert found == pytest.approx(expected, rel=1e-5)


def test_without_a_loss_scaler_an_overflow_ends_the_run_and_names_its_iteration(tmp_path: Path, incidents: Incidents) -> None:
    with pytest.raises(AssertionError, match="found Inf in the gradient norm at iteration 5, on rank 1"):
        train(tmp_path, "run", {**RUN, **AHEAD}, ranks=2)


def test_forwards_run_while_the_norm_is_on_its_way(tmp_path: Path, incidents: Incidents) -> None:
    """Not after the first step, nor after one that follows clipping; what an evaluation or the end needs is settled at once."""
    incidents.factors = {6: 30.0}
    noted = run_ranks(_settled, 2, build_container(tmp_path, "run", 2, {**RUN, **AHEAD}), incidents)
    assert noted[0] == [(2, 3, 2), (3, 4, 2), (4, 4, 4), (5, 6, 2), (6, 7, 2), (8, 8, 4), (9, 9, 4)]
    assert noted[1] == [(2, 3, 0), (3, 4, 0), (4, 4, 4), (5, 6, 0), (6, 7, 0), (8, 8, 4), (9, 9, 4)]


def _settled(_rank: int, container: ConfigContainer, incidents: Incidents) -> list[tuple[int, int, int]]:
    """Train, and return each step that was settled: its iteration, the present one, and forwards that this one had run."""
    noted: list[tuple[int, int, int]] = []
    settle = TrainStep._settle

    def noting(step: TrainStep) -> Any:
        assert step._open is not None
        noted.append((step._open.iteration, incidents.iteration, incidents.num_forwards))
        return settle(step)

    Report.close = lambda self, *, failed: None  # type: ignore[method-assign]  # pictures take longest
    TrainStep._settle = noting  # type: ignore[method-assign]  # in a process of its own
    pretrain(container, process_start=0.0)
    return noted
