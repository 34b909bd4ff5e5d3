"""The harness itself: results by rank, first causes, ends of ranks that die or hang."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from ranks import layouts_of, run_ranks


def place(rank: int, factor: int) -> tuple[int, int, int, int]:
    return rank * factor, dist.get_world_size(), int(os.environ["RANK"]), torch.get_num_threads()


def test_each_rank_returns_its_result_and_has_one_thread() -> None:
    assert run_ranks(place, 3, 10) == [(0, 3, 0, 1), (10, 3, 1, 1), (20, 3, 2, 1)]


def test_one_rank_needs_no_process_group() -> None:
    assert run_ranks(lambda rank: dist.is_initialized(), 1) == [False]


def test_the_parent_is_left_alone() -> None:
    environment = dict(os.environ)
    run_ranks(place, 2, 1)
    assert dict(os.environ) == environment
    assert not dist.is_initialized()


def one_fails(rank: int) -> None:
    if rank == 1:
        raise ValueError("the first cause")
    dist.barrier()


def test_the_first_cause_is_shown_though_peers_only_wait() -> None:
    with pytest.raises(AssertionError, match=r"rank 1:[^$]*the first cause"):
        run_ranks(one_fails, 2)


def one_dies(rank: int) -> None:
    if rank == 1:
        os._exit(9)
    dist.barrier()


def test_a_rank_that_dies_without_a_word_is_named() -> None:
    with pytest.raises(AssertionError, match=r"rank 0:|ranks \[0, 1\] ended without a result"):
        run_ranks(one_dies, 2)


def one_hangs(rank: int) -> None:
    time.sleep(60 if rank else 0)


def test_a_rank_that_hangs_is_killed_at_the_limit() -> None:
    started = time.monotonic()
    # On a busy machine rank 0 may not be done by then either.
    with pytest.raises(AssertionError, match=r"ranks \[(0, )?1\] ended without a result"):
        run_ranks(one_hangs, 2, timeout=0.7)
    assert time.monotonic() - started < 10


def test_layouts_are_all_divisions_of_the_ranks() -> None:
    assert [(layout.tensor, layout.data) for layout in layouts_of(4)] == [(1, 4), (2, 2), (4, 1)]
