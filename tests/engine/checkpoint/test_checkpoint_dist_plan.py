"""Who writes what, and what overlaps what."""

import pytest
import torch

from primus.engine.checkpoint.dist_plan import Box, Held, assign, overlap, overlaps, view


def held(*boxes: Box, shape: tuple[int, ...] = (4, 4)) -> Held:
    return Held(shape, torch.float32, boxes)


WHOLE = Box((0, 0), (4, 4))
UPPER, LOWER = Box((0, 0), (2, 4)), Box((2, 0), (2, 4))


def test_every_rectangle_is_written_once() -> None:
    ranks = [{"a": held(UPPER), "b": held(WHOLE)}, {"a": held(LOWER), "b": held(WHOLE)}]
    assert assign(ranks, spread=False) == [[("a", 0), ("b", 0)], [("a", 0)]]


def test_spreading_balances_what_several_ranks_hold() -> None:
    ranks = [{name: held(WHOLE) for name in "abcd"} for _ in range(2)]
    duties = assign(ranks, spread=True)
    assert [len(duty) for duty in duties] == [2, 2]
    assert {name for duty in duties for name, _ in duty} == set("abcd")


def test_spreading_gives_replicated_tensors_to_ranks_with_less_of_their_own() -> None:
    ranks = [{"own": held(WHOLE), "shared": held(WHOLE)}, {"shared": held(WHOLE)}]
    assert assign(ranks, spread=True) == [[("own", 0)], [("shared", 0)]]


def test_empty_rectangles_are_not_written() -> None:
    assert assign([{"a": held(WHOLE, Box((4, 0), (0, 4)))}], spread=True) == [[("a", 0)]]


def test_a_part_that_no_rank_holds_is_our_fault() -> None:
    with pytest.raises(AssertionError, match="of a have 8 of its 16 elements"):
        assign([{"a": held(UPPER)}], spread=True)


def test_overlap_is_the_shared_rectangle() -> None:
    assert overlap(Box((0, 1), (3, 3)), Box((2, 0), (4, 2))) == Box((2, 1), (1, 1))
    assert overlap(UPPER, LOWER) is None


def test_a_number_overlaps_itself() -> None:
    assert overlap(Box((), ()), Box((), ())) == Box((), ())


def test_overlaps_add_up_to_the_wanted_rectangle() -> None:
    wanted = Box((1, 1), (2, 3))
    found = list(overlaps(wanted, [UPPER, LOWER]))
    assert [number for number, _ in found] == [0, 1]
    assert sum(box.numel for _, box in found) == wanted.numel


def test_view_is_the_part_of_a_rectangle() -> None:
    tensor = torch.arange(8).view(2, 4)
    assert view(tensor, LOWER, Box((3, 1), (1, 2))).tolist() == [[5, 6]]
