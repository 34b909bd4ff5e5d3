"""The rectangles of all ranks make up the global tensor, each element once."""

import itertools
import random
from typing import NamedTuple

import pytest
import torch

from primus.engine.parallel.mesh import Part
from primus.engine.parallel.sharding import (
    Sharding,
    Shards,
    flat_range_shards,
    local_shape,
    parameter_shards,
    slice_global,
)

CASES = [
    ((12, 5), Sharding(dim=0)),
    ((12, 5), Sharding(dim=0, blocks=2)),
    ((5, 12), Sharding(dim=1)),
    ((12,), Sharding(dim=0)),
    ((24, 3, 4), Sharding(dim=0, blocks=3)),
    ((3, 12, 4), Sharding(dim=1, blocks=2)),
    ((24, 5), Sharding(dim=0, blocks=(12, 8, 4))),
    ((3, 12), Sharding(dim=1, blocks=(2, 4, 6))),
    ((7, 3), Sharding(dim=None)),
    ((7,), Sharding(dim=None)),
    ((12, 5), Sharding(dim=0, valid_rows=9)),
    ((12, 5), Sharding(dim=0, valid_rows=3)),
]


class Ranks(NamedTuple):
    """Where a rank stands."""

    tp: Part = Part(0, 1)
    ep: Part = Part(0, 1)
    etp: Part = Part(0, 1)


def ranks(size: int, index: int) -> Ranks:
    return Ranks(tp=Part(index, size))


def add(whole: torch.Tensor, counts: torch.Tensor, shards: Shards) -> None:
    assert shards.global_shape == tuple(whole.shape)
    for chunk in shards.chunks:
        where = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.data.shape, strict=True))
        whole[where] = chunk.data
        counts[where] += 1


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("shape", "sharding"), CASES)
def test_parameter_chunks_rebuild_the_global_tensor(size: int, shape: tuple[int, ...], sharding: Sharding) -> None:
    full = torch.randn(shape)
    rows = sharding.valid_rows or shape[0]
    whole, counts = torch.zeros(full[:rows].shape), torch.zeros(full[:rows].shape)
    for rank in range(size):
        local = slice_global(full, sharding, ranks(size, rank))
        assert tuple(local.shape) == local_shape(shape, sharding, ranks(size, rank))
        add(whole, counts, parameter_shards(local, sharding, ranks(size, rank)))
    assert torch.equal(whole, full[:rows])
    assert counts.unique().tolist() == [size if sharding.dim is None else 1]


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 50])
@pytest.mark.parametrize(("shape", "sharding"), CASES)
def test_flat_pieces_rebuild_the_global_tensor(pieces: int, shape: tuple[int, ...], sharding: Sharding) -> None:
    size = 1 if sharding.dim is None else 2
    full = torch.randn(shape)
    rows = sharding.valid_rows or shape[0]
    whole, counts = torch.zeros(full[:rows].shape), torch.zeros(full[:rows].shape)
    for rank in range(size):
        local = slice_global(full, sharding, ranks(size, rank)).contiguous()
        bounds = [round(i * local.numel() / pieces) for i in range(pieces + 1)]
        for start, stop in itertools.pairwise(bounds):
            flat = local.flatten()[start:stop]
            add(whole, counts, flat_range_shards(flat, start, local.shape, sharding, ranks(size, rank)))
    assert torch.equal(whole, full[:rows])
    assert counts.unique().tolist() == [1]


@pytest.mark.parametrize("seed", range(60))
def test_any_shape_cut_into_any_ranges_on_any_number_of_ranks_rebuilds_the_global_tensor(seed: int) -> None:
    draw = random.Random(seed)
    size, blocks, ndim = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 4)
    dim = draw.choice([None, *range(ndim)])
    shape = [draw.randint(1, 5) for _ in range(ndim)]
    if dim is None:
        size = blocks = 1
    else:
        shape[dim] *= size * blocks
    valid = draw.randint(0, shape[0]) if dim == 0 and blocks == 1 and draw.random() < 0.5 else None
    sharding = Sharding(dim=dim, blocks=blocks, valid_rows=valid)
    full = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)
    real = full if valid is None else full[:valid]
    whole, counts = torch.zeros_like(real), torch.zeros_like(real)
    for rank in range(size):
        local = slice_global(full, sharding, ranks(size, rank)).contiguous()
        cuts = sorted(draw.randint(0, local.numel()) for _ in range(draw.randint(0, 6)))
        for start, stop in itertools.pairwise([0, *cuts, local.numel()]):
            add(whole, counts, flat_range_shards(local.flatten()[start:stop], start, local.shape, sharding, ranks(size, rank)))
    assert torch.equal(whole, real)
    assert counts.eq(1).all()


EXPERTS = [
    ((4, 12, 5), Sharding(dim=1, blocks=2, is_expert=True)),
    ((4, 5, 12), Sharding(dim=2, is_expert=True)),
    ((4, 6), Sharding(dim=None, is_expert=True)),
]


@pytest.mark.parametrize(("shape", "sharding"), EXPERTS)
@pytest.mark.parametrize(("ep", "etp"), [(1, 2), (2, 1), (4, 2), (2, 3)])
def test_experts_are_divided_by_number_and_by_matrix(ep: int, etp: int, shape: tuple[int, ...], sharding: Sharding) -> None:
    full = torch.randn(shape)
    whole, counts = torch.zeros(shape), torch.zeros(shape)
    for expert, matrix in itertools.product(range(ep), range(etp)):
        rank = Ranks(tp=Part(1, 3), ep=Part(expert, ep), etp=Part(matrix, etp))
        local = slice_global(full, sharding, rank).contiguous()
        assert tuple(local.shape) == local_shape(shape, sharding, rank)
        half = local.numel() // 2 + 1
        add(whole, counts, flat_range_shards(local.flatten()[:half], 0, local.shape, sharding, rank))
        add(whole, counts, flat_range_shards(local.flatten()[half:], half, local.shape, sharding, rank))
    assert torch.equal(whole, full)
    assert counts.unique().tolist() == [etp if sharding.dim is None else 1]


def test_blocks_are_divided_one_by_one() -> None:
    gate_and_up = torch.arange(8)
    parts = [slice_global(gate_and_up, Sharding(dim=0, blocks=2), ranks(2, rank)).tolist() for rank in range(2)]
    assert parts == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_a_range_within_a_row_is_one_rectangle_and_others_have_a_head_and_a_tail() -> None:
    def rectangles(start: int, stop: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        shards = flat_range_shards(torch.zeros(stop - start), start, (4, 6), Sharding(dim=1), ranks(2, 1))
        return [(chunk.offsets, tuple(chunk.data.shape)) for chunk in shards.chunks]

    assert rectangles(7, 10) == [((1, 7), (1, 3))]
    assert rectangles(4, 20) == [((0, 10), (1, 2)), ((1, 6), (2, 6)), ((3, 6), (1, 2))]
    assert rectangles(6, 18) == [((1, 6), (2, 6))]
    assert rectangles(5, 5) == []


def test_chunks_are_views_so_that_loading_in_place_reaches_the_state() -> None:
    flat = torch.zeros(7)
    shards = flat_range_shards(flat, 3, (4, 3), Sharding(dim=0), ranks(1, 0))
    for chunk in shards.chunks:
        chunk.data.fill_(1.0)
    assert flat.sum() == 7
