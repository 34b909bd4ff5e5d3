"""Groups and coordinates in integers, up to thousands of ranks."""

import itertools

import pytest

from primus.engine.parallel.layout import Layout
from primus.errors import ConfigError


def test_default_order_of_the_worked_example() -> None:
    layout = Layout(world_size=16, tensor=2, context=2, pipeline=2)
    assert layout.groups("tp")[:2] == ((0, 1), (2, 3))
    assert layout.groups("cp")[:5] == ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10))
    assert layout.groups("dp") == ((0, 4), (1, 5), (2, 6), (3, 7), (8, 12), (9, 13), (10, 14), (11, 15))
    assert layout.groups("pp")[:2] == ((0, 8), (1, 9))
    assert layout.groups("dp", "cp")[:2] == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert layout.groups("tp", "cp")[0] == (0, 1, 2, 3)


def test_alternative_order_of_the_worked_example() -> None:
    layout = Layout(world_size=16, tensor=2, context=2, pipeline=2, use_tp_pp_dp_mapping=True)
    assert layout.groups("dp")[:2] == ((0, 8), (1, 9))
    assert layout.groups("pp")[:5] == ((0, 4), (1, 5), (2, 6), (3, 7), (8, 12))
    assert layout.groups("dp", "cp")[:2] == ((0, 2, 8, 10), (1, 3, 9, 11))


def test_expert_grid_of_the_worked_example() -> None:
    layout = Layout(world_size=16, tensor=2, context=2, pipeline=2, expert=4, expert_tensor=1)
    assert layout.groups("ep", grid="expert")[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert layout.groups("dp", grid="expert")[:3] == ((0, 4), (1, 5), (2, 6))


@pytest.mark.parametrize("world_size", [64, 4096])
@pytest.mark.parametrize("alternative", [False, True])
def test_every_axis_cuts_the_world_into_ranks_that_differ_there_only(world_size: int, alternative: bool) -> None:
    layout = Layout(world_size=world_size, tensor=4, context=2, pipeline=4, use_tp_pp_dp_mapping=alternative)
    for axis in ("tp", "cp", "dp", "pp"):
        groups = layout.groups(axis)
        assert sorted(itertools.chain(*groups)) == list(range(world_size))
        for group in groups:
            places = [layout.coordinates(rank) for rank in group]
            assert [getattr(place, axis) for place in places] == list(range(layout.sizes()[axis]))
            others = {tuple(getattr(p, a) for a in ("tp", "cp", "dp", "pp") if a != axis) for p in places}
            assert len(others) == 1


@pytest.mark.parametrize("alternative", [False, True])
def test_both_grids_have_the_same_stages_and_as_many_places(alternative: bool) -> None:
    layout = Layout(
        world_size=4096, tensor=4, context=2, pipeline=8, expert=8, expert_tensor=1, use_tp_pp_dp_mapping=alternative
    )
    assert layout.groups("pp") == layout.groups("pp", grid="expert")
    sizes = layout.sizes("expert")
    assert layout.tensor * layout.context * layout.data == sizes["tp"] * sizes["ep"] * sizes["dp"]


def test_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tensor 0, .* must be at least 1"):
        Layout(world_size=4, tensor=0)


def test_stages_of_experts_and_dense_parameters_must_coincide() -> None:
    with pytest.raises(ConfigError, match=r"expert tensor 1 x expert 2 must be tensor 2 x context 2"):
        Layout(world_size=32, tensor=2, context=2, pipeline=2, expert=2, expert_tensor=1, use_tp_pp_dp_mapping=True)


def test_impossible_world_says_which_sizes_would_do() -> None:
    with pytest.raises(ConfigError, match=r"3 processes cannot be divided into groups of 2 .*use 2 or 4 processes"):
        Layout(world_size=3, tensor=2)
