"""Dropout by position: the mask is a generator's sequence, every piece is cut from it, and it drops as much as it should."""

import pytest
import torch
from torch import Tensor

from primus.engine.kernels.position_dropout import PositionDropout

B, N, S = 2, 4, 16
EVERY = torch.arange(S)


def queries(heads: int = N, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.zeros(B, heads, S, 1, dtype=dtype)


def split_mix_64(seed: int, count: int) -> list[int]:
    """The generator as its authors give it, in numbers of any size."""
    state, drawn = seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        drawn.append(z ^ (z >> 31))
    return drawn


@pytest.mark.parametrize("probability", [0.1, 0.75])
def test_the_mask_is_the_generators_sequence(probability: float) -> None:
    seed = 2**62 - 17
    found = PositionDropout(seed, probability, S).factors(queries(), EVERY, EVERY).flatten().tolist()
    # The upper half of the numbers are those with a sign.
    kept = [(number + 2**63) % 2**64 >= int(probability * 2**64) for number in split_mix_64(seed, B * N * S * S)]
    assert [value != 0 for value in found] == kept
    assert {value for value in found if value} == {1 / (1 - probability)}


def test_pieces_are_cut_from_the_whole() -> None:
    whole = PositionDropout(3, 0.5, S).factors(queries(), EVERY, EVERY)
    rows, columns = torch.tensor([1, 2, 9]), torch.tensor([0, 4, 5, 15])
    piece = PositionDropout(3, 0.5, S).factors(queries(), rows, columns)
    assert torch.equal(piece, whole[:, :, rows][..., columns])
    second_half = PositionDropout(3, 0.5, S, share=(1, 2)).factors(queries(N // 2), EVERY, EVERY)
    assert torch.equal(second_half, whole[:, N // 2 :])


def test_it_drops_as_much_as_asked_and_nowhere_alike() -> None:
    long = torch.arange(256)
    found = [PositionDropout(seed, 0.3, 256).factors(queries(dtype=torch.float32), long, long) == 0 for seed in (1, 2)]
    for mask in found:
        for dim in range(4):
            others = [other for other in range(4) if other != dim]
            assert mask.float().mean(others).sub(0.3).abs().max() < 0.05
    rows = torch.cat([mask.flatten(0, 2) for mask in found]).float() - 0.3
    overlap = (rows @ rows.T / 256).fill_diagonal_(0).abs().max()
    assert overlap < 0.1, "two rows share their mask"


def test_certain_dropout_leaves_nothing() -> None:
    assert PositionDropout(1, 1.0, S).factors(queries(), EVERY, EVERY).eq(0).all()


def test_factors_are_wide() -> None:
    assert PositionDropout(1, 0.5, S).factors(queries(dtype=torch.bfloat16), EVERY, EVERY).dtype == torch.float32
