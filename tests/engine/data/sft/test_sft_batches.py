"""Samples to microbatches: order, packs, filling up."""

import multiprocessing
from collections import Counter
from functools import partial
from itertools import chain, islice

import numpy as np
import pytest
import torch
from runs import build_container
from test_sft_samples import Letters

from primus.engine.config import PackingConfig, SFTConfig
from primus.engine.data import workers
from primus.engine.data.samplers import PADDING, Sampling
from primus.engine.data.sft.batches import Batches
from primus.engine.data.sft.order import Order, in_turn_of_ranks, round_and_round
from primus.engine.data.sft.packing import pack
from primus.engine.data.sft.rows import Listed
from primus.engine.data.sft.samples import Sample, Samples
from primus.engine.data.sft.shape import Shape
from primus.errors import InputError

END = 9
SHAPE = Shape(seq_length=8, multiple=4, segment_multiple=1, is_fixed=False, end=END)


def made(*rows):
    return [Sample(np.array(ids), np.array(trained, bool)) for ids, trained in rows]


SAMPLES = made(([1, 2, 3, END], [0, 0, 1, 1]), ([4, 5, END], [0, 1, 1]), ([6, 7, 8, 6, 7, END], [0, 0, 0, 0, 1, 1]))


def batch(numbers, shape=SHAPE, packs=None):
    return next(Batches(SAMPLES, packs, shape, torch.device("cpu")).stream(lambda: iter([numbers])))


def test_rows_are_filled_up_to_the_longest_and_the_real_end_is_trained():
    found = batch([0, 1])
    assert found.tokens.tolist() == [[1, 2, 3, END], [4, 5, END, END]]
    assert found.labels.tolist() == [[2, 3, END, END], [5, END, END, END]]
    assert found.loss_mask.tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert found.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert found.cu_seqlens is None
    fixed = Shape(seq_length=8, multiple=4, segment_multiple=1, is_fixed=True, end=END)
    assert batch([0], fixed).tokens.shape == (1, 8)


def test_a_sample_that_only_fills_a_microbatch_has_no_loss():
    found = batch([0, PADDING])
    assert found.loss_mask.sum(1).tolist() == [2.0, 0.0]
    assert found.padding.tolist() == [[False, False, False, True], [True] * 4]


def test_packed_samples_have_places_and_ends_of_their_own():
    found = batch([0], packs=[[1, 0]])
    assert found.tokens.tolist() == [[4, 5, 1, 2, 3, END, END, END]]
    assert found.labels.tolist() == [[5, END, 2, 3, END, END, END, END]]
    assert found.loss_mask.tolist() == [[1, 1, 0, 1, 1, 0, 0, 0]]
    assert found.position_ids.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2]]
    assert found.cu_seqlens == (0, 2, 5, 8)
    wide = Shape(seq_length=8, multiple=4, segment_multiple=4, is_fixed=False, end=END)
    assert batch([0], wide, [[1, 0]]).cu_seqlens == (0, 4, 8)


@pytest.mark.parametrize(
    ("keys", "is_fixed", "multiples"),
    [
        ({}, False, (6, 3)),
        ({"pipeline_model_parallel_size": 2}, True, (6, 3)),
        ({"num_experts": 2, "expert_model_parallel_size": 2, "moe_token_dispatcher_type": "allgather"}, True, (6, 3)),
        ({"num_experts": 2, "expert_model_parallel_size": 2, "moe_token_dispatcher_type": "alltoall"}, False, (6, 3)),
        ({"context_parallel_size": 2}, False, (12, 12)),
        ({"tensor_model_parallel_size": 4, "sequence_parallel": True}, False, (12, 3)),
        ({"tensor_model_parallel_size": 2, "context_parallel_size": 2, "sequence_parallel": True}, False, (24, 12)),
    ],
    ids=["one", "stages", "gathered experts", "exchanged experts", "context", "sequence", "both"],
)
def test_lengths_are_what_ranks_and_stages_want(keys, is_fixed, multiples, tmp_path):
    ranks = int(np.prod([size for key, size in keys.items() if key.endswith("parallel_size")]))
    config = build_container(tmp_path, "exp", ranks, {"num_attention_heads": 4, "num_query_groups": 4, **keys})
    rows = SFTConfig(train="rows", pad_multiple=6, packing=PackingConfig(size=config.model.seq_length, pad_multiple=3))
    shape = Shape.of(config, rows, END)
    assert (shape.is_fixed, (shape.multiple, shape.segment_multiple)) == (is_fixed, multiples)


@pytest.mark.parametrize("packs", [None, [[1, 0], [2], [0, 1]]], ids=["rows", "packs"])
def test_worker_processes_make_the_same_batches_from_wherever_a_run_goes_on(packs, monkeypatch):
    monkeypatch.setattr(workers, "_useful_workers", lambda wanted: wanted)

    def made(num_workers, consumed):
        batches = Batches(SAMPLES, packs, SHAPE, torch.device("cpu"), num_workers=num_workers)
        order = Order(total=3, batch=3, seed=1)
        numbers = partial(in_turn_of_ranks, order, Sampling(total=3, micro_batch_size=1, rank=0, size=1), consumed)
        return [(each.tokens.tolist(), each.loss_mask.tolist(), each.cu_seqlens) for each in islice(batches.stream(numbers), 7)]

    before = set(multiprocessing.active_children())
    alone = made(0, 0)
    assert made(2, 0) == alone
    assert set(multiprocessing.active_children()) == before
    assert made(2, 3)[:4] == alone[3:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_row_that_is_no_sample_is_told_without_a_workers_traceback(num_workers):
    rows = Listed([{"input": "a"}], "rows")
    samples = Samples(rows, SFTConfig(train="rows"), Letters(), tokenizer_model=None, max_length=9)
    batches = Batches(samples, None, SHAPE, torch.device("cpu"), num_workers=num_workers)
    with pytest.raises(InputError, match=r"^rows, row 0 has no field output, the answer; it has input$"):
        next(batches.stream(lambda: iter([[0]])))


def test_bins_are_those_of_first_fit():
    decreasing = PackingConfig(size=10, algorithm="first_fit_decreasing")
    assert pack([3, 7, 5, 5, 2, 8], decreasing, seed=0) == [[5, 4], [1, 0], [2, 3]]
    lengths = np.random.default_rng(0).integers(1, 10, 50).tolist()
    found = pack(lengths, PackingConfig(size=10), seed=5)
    assert found == _first_fit(lengths, 10, np.random.default_rng(5).permutation(50))
    assert sorted(chain.from_iterable(found)) == list(range(50))
    assert pack(lengths, PackingConfig(size=10), seed=6) != found
    with pytest.raises(InputError, match="a sample of 11 tokens does not fit into a pack of 10"):
        pack([11], decreasing, seed=0)


def _first_fit(lengths, size, order):
    bins, room = [], []
    for number in order.tolist():
        place = next((each for each, left in enumerate(room) if left >= lengths[number]), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(size)
        bins[place].append(number)
        room[place] -= lengths[number]
    return bins


ORDER = Order(total=11, batch=4, seed=3)


def samples_of_iteration(order, iteration):
    """Return the samples of an iteration, counted from 1."""
    epoch, done = divmod((iteration - 1) * order.batch, order.epoch_samples)
    return order.epoch(epoch)[done : done + order.batch].tolist()


def sampling(rank, size, micro=1):
    return Sampling(total=11, micro_batch_size=micro, rank=rank, size=size)


@pytest.mark.parametrize(("size", "micro"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_a_batch_has_the_same_samples_in_every_layout(size, micro):
    for iteration in range(1, 6):
        drawn = []
        for rank in range(size):
            stream = in_turn_of_ranks(ORDER, sampling(rank, size, micro), (iteration - 1) * 4)
            drawn += chain.from_iterable(islice(stream, 4 // (size * micro)))
        assert sorted(drawn) == sorted(samples_of_iteration(ORDER, iteration))
    assert next(in_turn_of_ranks(ORDER, sampling(1, 2, 2), 0)) == samples_of_iteration(ORDER, 1)[1::2]


def test_an_epoch_has_every_sample_at_most_once_and_the_next_is_another():
    first = [samples_of_iteration(ORDER, iteration) for iteration in (1, 2)]
    second = [samples_of_iteration(ORDER, iteration) for iteration in (3, 4)]
    assert max(Counter(chain.from_iterable(first)).values()) == 1
    assert first != second
    stream = in_turn_of_ranks(ORDER, sampling(0, 1), 0)
    assert list(islice(stream, 16)) == [[each] for each in chain.from_iterable([*first, *second])]


def test_rows_stand_as_they_are_on_request_and_too_few_are_told():
    assert samples_of_iteration(Order(total=11, batch=4, seed=3, kind="single"), 2) == [4, 5, 6, 7]
    with pytest.raises(InputError, match="there are 3 samples to train on, fewer than global_batch_size 4"):
        samples_of_iteration(Order(total=3, batch=4, seed=3), 1)


def test_evaluations_go_round_or_walk_the_whole_set():
    s = Sampling(total=3, micro_batch_size=1, rank=1, size=2)
    assert list(islice(round_and_round(s, 0, whole=False), 3)) == [[1], [0], [2]]
    assert list(islice(round_and_round(s, 0, whole=True), 3)) == [[1], [PADDING], [1]]
