"""Activations leave when the table says so, their memory is free meanwhile, and what comes back is what left."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from primus.engine.pipeline.host_link import HostLink, Started, host_link
from primus.engine.pipeline.offload import OffloadStore
from primus.engine.pipeline.runtime import execute
from primus.engine.pipeline.schedules import Op, Row, Schedule, rank_plan, simulate
from primus.engine.pipeline.storage import memory_of
from primus.engine.rehearsal.live import Live

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
WORDS = "F0 F1 O0 F2 O1 F3 R0 B0 R1 B1 B2 O3 R3 B3"
PLAIN = " ".join(word for word in WORDS.split() if word[0] in "FB")
BYTES = 6 * 5 * 8
"""Of the input of the linear below."""
WEIGHT = torch.arange(20.0, dtype=torch.float64).view(5, 4)


def table(words: str) -> Schedule:
    row: Row = tuple(Op(word[0], int(word[1:])) for word in words.split())  # type: ignore[arg-type]
    schedule = Schedule(algorithm="by hand", num_microbatches=4, rows=(row,))
    simulate(schedule)
    return schedule


class Gradients:
    """Sets nothing aside."""

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def deferring(self, key: Op) -> AbstractContextManager[None]:
        return nullcontext()

    def compute_deferred(self, key: Op) -> None: ...
    def compute_postponed(self) -> None: ...
    def release(self, chunk: int) -> None: ...
    def gather_ahead(self, chunk: int) -> None: ...


class LateLink:
    """Copies hold nothing until they are waited for, as on a device that is busy; and they count."""

    def __init__(self) -> None:
        self.under_way: list[Tensor] = []

    def start_save(self, x: Tensor) -> Started:
        return self._start(x)

    def start_load(self, x: Tensor) -> Started:
        return self._start(x)

    def _start(self, x: Tensor) -> Started:
        target = torch.full_like(x, 255)
        self.under_way.append(target)

        def wait() -> None:
            if any(each is target for each in self.under_way):
                target.copy_(x)
                self.under_way = [each for each in self.under_way if each is not target]

        return target, wait


def links() -> dict[str, Callable[[], HostLink]]:
    return {"now": lambda: host_link(torch.device("cpu"), overlaps=True), "late": LateLink}


def run(words: str, store: OffloadStore | None, seen: Callable[[Op], None] = lambda op: None, device: str = "cpu") -> Tensor:
    """Run a step over one linear whose input is made of the microbatch's number; return the gradient of its weight."""
    weight = WEIGHT.to(device).requires_grad_()
    weight.grad = None

    @contextmanager
    def around(op: Op) -> Iterator[None]:
        seen(op)
        yield

    def forward(op: Op, hidden: Tensor | None) -> Tensor:
        made = (torch.arange(30.0, dtype=torch.float64, device=device).view(6, 5) * (op.microbatch + 1)).sin()
        return (made @ weight).sum()

    execute(rank_plan(table(words), 0), forward=forward, gradients=Gradients(), around=around, offload=store)
    assert weight.grad is not None
    weight.requires_grad_(False)
    return weight.grad


@pytest.mark.parametrize("link", links())
def test_gradients_have_the_bits_of_a_step_that_moves_nothing(link: str) -> None:
    store = OffloadStore(links()[link](), set())
    assert torch.equal(run(WORDS, store), run(PLAIN, None))
    assert store.most_parked_bytes > 0
    assert store.is_empty
    assert store.parked_bytes == 0


def test_bytes_lie_on_the_host_in_the_windows_of_the_table() -> None:
    store, found = store_of(resident=[WEIGHT]), list[int]()
    run(WORDS, store, lambda op: found.append(store.parked_bytes))
    expected, parked = [], 0
    for word in WORDS.split():
        parked += {"O": BYTES, "R": -BYTES}.get(word[0], 0)
        expected += [parked] if word[0] in "FB" else []
    assert found == expected
    assert max(found) == store.most_parked_bytes == 2 * BYTES


class _Keeps(torch.autograd.Function):
    """Keeps what it is given besides its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *kept: Tensor) -> Tensor:
        ctx.save_for_backward(*kept)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        ctx.seen = [each.clone() for each in ctx.saved_tensors]
        _Keeps.seen = ctx.seen
        return dy, *(None for _ in ctx.saved_tensors)

    seen: Sequence[Tensor] = ()


UNIT = Op("F", 0)


def kept(store: OffloadStore, *tensors: Tensor, given: Tensor | None = None) -> Tensor:
    """Let a forward keep tensors, and return what it made."""
    leaf = torch.zeros((), requires_grad=True)
    with store.keeping(UNIT, given):
        made: Tensor = _Keeps.apply(leaf, *tensors)
    return made


def store_of(link: HostLink | None = None, resident: Sequence[Tensor] = (), **more: Any) -> OffloadStore:
    return OffloadStore(link or host_link(torch.device("cpu"), overlaps=True), {memory_of(x) for x in resident}, **more)


def test_memory_is_free_while_its_bytes_are_on_the_host() -> None:
    array = np.arange(12.0)
    gone, store = weakref.ref(array), store_of()
    made = kept(store, torch.from_numpy(array))
    del array
    assert gone() is not None, "the copy is under way"
    store.free(UNIT)
    assert gone() is None
    assert store.parked_bytes == 96
    store.load(UNIT)
    made.backward()
    assert _Keeps.seen[0].tolist() == list(np.arange(12.0))
    store.end(UNIT)
    assert store.is_empty


def test_views_of_one_tensor_travel_once_and_come_back_as_they_were() -> None:
    base, store = torch.arange(24.0).view(4, 6), store_of(LateLink())
    views = (base[1:3, ::2], base.t(), base, base.view(torch.int32).view(torch.float32)[3])
    expected = [view.clone() for view in views]
    made = kept(store, *views)
    base = views = None  # type: ignore[assignment]
    store.free(UNIT)
    assert store.parked_bytes == 96
    store.load(UNIT)
    made.backward()
    store.end(UNIT)
    assert all(torch.equal(found, wanted) for found, wanted in zip(_Keeps.seen, expected, strict=True))


def test_weights_ids_masks_and_the_input_stay() -> None:
    weight, given, ids, mask = torch.ones(5, 4), torch.ones(3, 5), torch.arange(7), torch.ones(2, 2, dtype=torch.bool)
    store = store_of(resident=[weight])
    kept(store, weight.t(), given[1:], ids, mask, torch.ones(10), given=given)
    store.free(UNIT)
    assert store.parked_bytes == 40


class _Core(nn.Module):
    """Keeps its arguments and what it makes inside."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        made: Tensor = _Keeps.apply(q, q, k, torch.ones(100))
        return made


def test_of_attention_what_it_keeps_and_its_output_leave() -> None:
    core = _Core()
    store = store_of(attention=[core])
    leaf, store_before, after = torch.zeros(6, requires_grad=True), torch.ones(1000), torch.ones(2000)
    with store.keeping(UNIT, None):
        x = _Keeps.apply(leaf, store_before)
        context = core(x + 1, torch.ones(8))
        made = _Keeps.apply(context, context, after).sum()
    store.free(UNIT)
    assert store.parked_bytes == 4 * (6 + 8 + 100 + 6)
    core(x, x)  # outside of a forward that is offloaded nothing is taken
    store.load(UNIT)
    made.backward()
    store.end(UNIT)
    assert store.is_empty


def test_what_no_backward_reads_is_waited_for_all_the_same() -> None:
    link = LateLink()
    store = store_of(link)
    kept(store, torch.ones(4))
    store.free(UNIT)
    store.load(UNIT)
    assert link.under_way
    store.end(UNIT)
    assert not link.under_way


def test_forgotten_forwards_leave_nothing_under_way() -> None:
    link = LateLink()
    store = store_of(link)
    kept(store, torch.ones(4))
    assert link.under_way
    store.forget()
    assert store.is_empty
    assert not link.under_way


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_device_copies_both_ways_at_a_time_only_if_it_may(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    streams: list[object] = []

    def stream(_device: torch.device) -> object:
        streams.append(object())
        return streams[-1]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    host_link(torch.device("cuda"), overlaps=overlaps)
    assert len(streams) == (2 if overlaps else 1)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_gives_its_bits_back(device: str) -> None:
    store = OffloadStore(host_link(torch.device(device), overlaps=True), set())
    assert torch.equal(run(WORDS, store, device=device), run(PLAIN, None, device=device))
    assert store.is_empty


def test_without_memory_host_copies_take_none_of_the_device() -> None:
    """A rehearsal counts what is on the device, which has shapes alone."""
    with Live("meta") as live:
        store = store_of(host_link(torch.device("meta"), overlaps=True))
        made = kept(store, torch.empty(1000, device="meta"))
        assert live.now == 4000
        store.free(UNIT)
        assert (live.now, store.parked_bytes) == (0, 4000)
        store.load(UNIT)
        assert live.now == 4000
        made.backward()
        store.end(UNIT)
    assert _Keeps.seen[0].shape == (1000,)
