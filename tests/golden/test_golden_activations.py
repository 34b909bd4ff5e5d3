"""Activations that ranks really hold, schedule by schedule: as many as the tables say, and ranked as in the papers."""

import weakref
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train_rank
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from primus.engine.config import ConfigContainer
from primus.engine.pipeline.schedules import schedule_of, simulate
from primus.engine.train.stages import Stages

pytestmark = pytest.mark.slow  # whole runs of four ranks

RANKS, MICROBATCHES = 4, 12
MODEL: dict[str, Any] = {
    "num_layers": 8,
    "pipeline_model_parallel_size": RANKS,
    "global_batch_size": MICROBATCHES,
    "seq_length": 128,
    "max_position_embeddings": 128,
    "train_iters": 2,
}
ZBV: dict[str, Any] = {"patch_zero_bubble": True, "zero_bubble_v_schedule": True}
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "interleaved": {"num_virtual_stages_per_pipeline_rank": 2},
    "zero-bubble-v": {**ZBV, "zero_bubble_v_schedule_mem_setup": "zb"},
    "v-half": {**ZBV, "zero_bubble_v_schedule_mem_setup": "half"},
    "v-min": {**ZBV, "zero_bubble_v_schedule_mem_setup": "min"},
}


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages made since it was entered that are still held, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        made = function(*arguments, **(keywords or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address not in self._known:
            self._known.add(address)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._forget, address, storage.nbytes())

    def _forget(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.now -= nbytes


def measured_rank(rank: int, config: ConfigContainer) -> int:
    """Return the most bytes that the forwards and backwards of the second step held."""
    train, peaks = Stages.train, list[int]()

    def measured(self: Stages, *arguments: Any, **keywords: Any) -> None:
        with LiveBytes() as live:
            train(self, *arguments, **keywords)
        peaks.append(live.most)

    Stages.train = measured  # type: ignore[method-assign]
    train_rank(rank, config)
    return peaks[-1]


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[int], list[float]]]:
    """By schedule: measured bytes of each rank, and the microbatches of a whole rank that its table holds at most."""
    folder, found = tmp_path_factory.mktemp("peaks"), {}
    for name, keys in SCHEDULES.items():
        config = build_container(folder, name, RANKS, {**MODEL, **keys})
        table = simulate(schedule_of(config.model.pipeline, RANKS, MICROBATCHES))
        found[name] = run_ranks(measured_rank, RANKS, config), list(table.peaks)
    return found


def test_measured_memory_ranks_schedules_as_the_papers_do(peaks: dict[str, tuple[list[int], list[float]]]) -> None:
    most = {name: max(measured) for name, (measured, _) in peaks.items()}
    assert most["v-min"] < most["v-half"] < most["1f1b"] < most["zero-bubble-v"] < most["interleaved"]
    # 1F1B gives its first rank the most; folded schedules hold about the same everywhere.
    assert peaks["1f1b"][0] == sorted(peaks["1f1b"][0], reverse=True)
    for name in ("zero-bubble-v", "v-half", "v-min"):
        assert max(peaks[name][0]) < 1.2 * min(peaks[name][0])


def test_ranks_hold_what_their_table_says(peaks: dict[str, tuple[list[int], list[float]]]) -> None:
    """In units of one microbatch, beside what the operation of the moment needs.

    Up to half a unit more where backwards are split: gradients that wait for their weight gradient are no activations.
    """
    first, _, third, _ = peaks["1f1b"][0]
    unit = (first - third) / 2
    moment = first - 4 * unit
    for name, (measured, table) in peaks.items():
        for held, microbatches in zip(measured, table, strict=True):
            assert (held - moment) / unit == pytest.approx(microbatches, abs=0.6), name
