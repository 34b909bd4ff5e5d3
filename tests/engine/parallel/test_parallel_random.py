"""Random streams: which ranks draw alike, what a fork leaves behind, and continuation from a saved state."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.parallel.layout import Coordinates
from primus.engine.parallel.random import RandomStreams

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def streams(*, seed: int = 11, tp: int = 0, dp: int = 0, pp: int = 0, device: str = "cpu") -> RandomStreams:
    return RandomStreams(seed, Coordinates(tp=tp, cp=0, dp=dp, pp=pp), device)


def draw(of: RandomStreams, name: str | None, device: str = "cpu") -> Tensor:
    with of.fork(name):
        return torch.rand(8, device=device)


def seeded(seed: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.rand(8)


def test_seeds_follow_megatrons_rule() -> None:
    of = streams(seed=11, tp=3, pp=2)
    assert torch.equal(draw(of, None), seeded(11 + 100 * 2))
    of = streams(seed=11, tp=3, pp=2)
    assert torch.equal(draw(of, "model-parallel"), seeded(11 + 100 * 2 + 2718 + 3))


@pytest.mark.parametrize("device", DEVICES)
def test_tensor_parallel_ranks_agree_on_the_default_stream_only(device: str) -> None:
    common, own = [], []
    for tp in (0, 1):
        of = streams(tp=tp, device=device)
        common.append(draw(of, None, device))
        own.append(draw(of, "model-parallel", device))
    assert torch.equal(*common)
    assert not torch.equal(*own)


def test_data_parallel_ranks_draw_alike() -> None:
    assert torch.equal(draw(streams(dp=0), "model-parallel"), draw(streams(dp=1), "model-parallel"))


@pytest.mark.parametrize("device", DEVICES)
def test_a_fork_leaves_the_default_stream_where_it_was(device: str) -> None:
    of = streams(device=device)
    expected = [draw(of, None, device), draw(of, None, device)]
    of = streams(device=device)
    first = draw(of, None, device)
    draw(of, "model-parallel", device)
    assert torch.equal(first, expected[0])
    assert torch.equal(draw(of, None, device), expected[1])


def test_a_stream_goes_on_where_its_last_fork_ended() -> None:
    of = streams()
    whole = seeded(11 + 2718)
    with of.fork("model-parallel"):
        first = torch.rand(4)
    with of.fork("model-parallel"):
        second = torch.rand(4)
    assert not torch.equal(first, second)
    torch.manual_seed(11 + 2718)
    assert torch.equal(first, torch.rand(4))
    assert torch.equal(first, whole[:4])


def test_an_error_in_a_fork_restores_the_default_stream() -> None:
    of = streams()
    outside = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="negative dimension"), of.fork("model-parallel"):
        torch.rand(3) + torch.rand(-1)
    assert torch.equal(torch.get_rng_state(), outside)


@pytest.mark.parametrize("device", DEVICES)
def test_saved_streams_continue_exactly(device: str) -> None:
    of = streams(device=device)
    draw(of, "model-parallel", device)
    state = of.state_dict()
    expected = draw(of, "model-parallel", device)
    other = streams(seed=99, device=device)
    other.load_state_dict(state)
    assert torch.equal(draw(other, "model-parallel", device), expected)


def test_a_saved_state_does_not_move_with_its_streams() -> None:
    of = streams()
    state = of.state_dict()
    first = draw(of, "model-parallel")
    draw(of, "model-parallel")
    of.load_state_dict(state)
    assert torch.equal(draw(of, "model-parallel"), first)


def test_counts_are_of_a_name_and_a_replay_counts_as_before() -> None:
    of = streams()
    assert [of.count("one"), of.count("one"), of.count("other")] == [0, 1, 0]
    state = of.state_dict()
    assert of.count("one") == 2
    with of.replay(state):
        assert of.count("one") == 2
    assert of.count("one") == 3
    other = streams(seed=99)
    other.load_state_dict(state)
    assert other.count("one") == 2


def test_dropout_in_a_fork_draws_from_its_stream() -> None:
    masks = []
    for tp in (0, 1, 0):
        with streams(tp=tp).fork("model-parallel"):
            masks.append(F.dropout(torch.ones(64), 0.5))
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
