"""Keys of the messages between stages, through the front door, change what travels and when it is asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import run_ranks
from runs import build_container, train_rank
from torch import Tensor

from primus.engine.config import ConfigContainer
from primus.engine.model.gpt import GPTModel
from primus.engine.pipeline.links import Links

pytestmark = pytest.mark.slow  # whole runs

Event = tuple[str, tuple[int, ...]]
"""What happened, and the shape of what it happened to."""

WATCHED = {
    "ask": (dist, "irecv"),
    "send": (dist, "isend"),
    "need": (Links, "take"),
    "forward": (GPTModel, "forward"),
    "backward": (Tensor, "backward"),
}
MICROBATCHES, WHOLE = 3, (32, 1, 32)


def events(folder: Path, ranks: int, keys: dict[str, Any]) -> list[list[Event]]:
    """Train one step over two stages and return the events of every rank, in their order."""
    base = {"pipeline_model_parallel_size": 2, "global_batch_size": MICROBATCHES, "train_iters": 1}
    return list(run_ranks(watched, ranks, build_container(folder, "run", ranks, {**base, **keys})))


def watched(rank: int, config: ConfigContainer) -> list[Event]:
    seen: list[Event] = []

    def watch(event: str, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def noting(*arguments: Any, **keywords: Any) -> Any:
            seen.append((event, tuple(arguments[0].shape) if isinstance(arguments[0], Tensor) else ()))
            return original(*arguments, **keywords)

        setattr(owner, name, noting)

    for event, (owner, name) in WATCHED.items():
        watch(event, owner, name)
    train_rank(rank, config)
    return seen


def names(seen: list[Event], *wanted: str) -> list[str]:
    return [name for name, _ in seen if name in wanted]


def shapes(seen: list[Event], wanted: str) -> list[tuple[int, ...]]:
    return [shape for name, shape in seen if name == wanted]


BY_NAME = {"patch_primus_pipeline": True, "pp_algorithm": "1f1b"}


@pytest.mark.parametrize(
    ("keys", "is_ahead"),
    [
        ({"overlap_p2p_comm": True}, True),
        ({"overlap_p2p_comm": False}, False),
        ({**BY_NAME, "communication_method": "async_p2p", "overlap_p2p_comm": False}, True),
        ({**BY_NAME, "communication_method": "batch_p2p", "overlap_p2p_comm": True}, False),
    ],
    ids=["overlap", "no-overlap", "async", "batch"],
)
def test_a_message_is_asked_for_while_the_one_before_is_worked_on_or_when_it_is_needed(
    tmp_path: Path, keys: dict[str, Any], is_ahead: bool
) -> None:
    for seen in events(tmp_path, 2, keys):
        assert names(seen, "ask", "need") == (["ask", "need"] if is_ahead else ["need", "ask"]) * MICROBATCHES
        assert shapes(seen, "ask") == shapes(seen, "send") == [WHOLE] * MICROBATCHES


def test_an_element_travels_ahead_of_each_message(tmp_path: Path) -> None:
    for seen in events(tmp_path, 2, {"pre_communication_optimization": True}):
        assert shapes(seen, "ask") == shapes(seen, "send") == [(1,), WHOLE] * MICROBATCHES


@pytest.mark.parametrize(("scatters", "length"), [(True, 32 // 2), (False, 32)])
def test_tensor_parallel_ranks_send_a_share_each_or_the_whole(tmp_path: Path, scatters: bool, length: int) -> None:
    keys = {"tensor_model_parallel_size": 2, "sequence_parallel": False, "scatter_gather_tensors_in_pipeline": scatters}
    for seen in events(tmp_path, 4, keys):
        assert shapes(seen, "ask") == shapes(seen, "send") == [(length, 1, 32)] * MICROBATCHES


@pytest.mark.parametrize("warms_up", [False, True])
def test_a_warm_up_runs_each_chunk_before_anything_travels(tmp_path: Path, warms_up: bool) -> None:
    keys = {"num_layers": 4, "num_virtual_stages_per_pipeline_rank": 2, "global_batch_size": 4, "pp_warmup": warms_up}
    for seen in events(tmp_path, 2, keys):
        first = names(seen, *WATCHED).index("ask")
        assert names(seen[:first], *WATCHED) == ["forward", "backward"] * 2 * warms_up
        assert names(seen[first:], "forward") == ["forward"] * 2 * 4
