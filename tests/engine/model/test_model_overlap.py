"""What overlapped linears do in which order: a piece is on its way before the product that hides it begins."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from primus.engine.config import DistConfig
from primus.engine.config.model import ParallelConfig
from primus.engine.config.tp_overlap import BULK, ColumnOverlap, ProductOverlap, RowOverlap
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.parameter import Place, normal
from primus.engine.parallel import collectives
from primus.engine.parallel.lanes import Lanes
from primus.engine.parallel.mesh import Mesh, build_mesh
from primus.engine.parallel.random import RandomStreams

RING, PIPE = ProductOverlap(method="ring_exchange"), ProductOverlap(method="pipeline", num_splits=3)
S, B, H, F = 24, 2, 8, 16
Overlap = ColumnOverlap | RowOverlap


class Recorder(TorchDispatchMode):
    """Notes products, starts of collectives and waits, each run of equal events once."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def note(self, event: str) -> None:
        self.events.append(event)

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function.overloadpacket.__name__ in ("mm", "addmm"):
            self.note("multiply")
        return function(*arguments, **(keywords or {}))

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hear of collectives that are started or waited for."""
        names = {"batch_isend_irecv": "shift", "all_reduce": "reduce", "broadcast": "gather"}
        for name, event in names.items():
            monkeypatch.setattr(collectives.dist, name, self._noting(getattr(torch.distributed, name), event))

    def _noting(self, start: Callable[..., Any], event: str) -> Callable[..., Any]:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.note(event)
            made = start(*arguments, **keywords)
            works = made if isinstance(made, list) else [made]
            watched = [SimpleNamespace(wait=lambda work=work: (self.note("wait"), work.wait())) for work in works]
            return watched if isinstance(made, list) else watched[0]

        return noted


def recorded(_rank: int, tp: int, overlaps: list[Overlap]) -> list[dict[str, list[str]]]:
    """Return the events of each linear's forward and backward."""
    mesh = tensor_mesh(tp)
    return [events_of(mesh, overlap) for overlap in overlaps]


def events_of(mesh: Mesh, overlap: Overlap) -> dict[str, list[str]]:
    monkeypatch, recorder = pytest.MonkeyPatch(), Recorder()
    linear, x, dy = case(mesh, overlap, torch.float64)
    recorder.watch(monkeypatch)
    with recorder:
        y = linear(x)
        y = y if isinstance(y, Tensor) else y[0]
        forward, recorder.events = recorder.events, []
        y.backward(dy)
    monkeypatch.undo()
    return {"forward": once(forward), "backward": once(recorder.events)}


def tensor_mesh(tp: int) -> Mesh:
    parallel = ParallelConfig(tensor_model_parallel_size=tp, sequence_parallel=True)
    return build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu"))


def case(mesh: Mesh, overlap: Overlap, dtype: torch.dtype) -> tuple[torch.nn.Module, Tensor, Tensor]:
    """Return a linear, its input and the gradient of its output on this rank."""
    tp = mesh.tp.size
    place = Place(
        tp=mesh.tp,
        cp=mesh.cp,
        cp_exchange=mesh.cp_exchange,
        cp_ring=mesh.cp_ring,
        dp=mesh.dp,
        ep=mesh.ep,
        etp=mesh.etp,
        etp_ep=mesh.etp_ep,
        lanes=Lanes(mesh.device),
        dtype=dtype,
        device=torch.device("cpu"),
        weights_device=torch.device("cpu"),
        streams=RandomStreams(1, mesh.coordinates),
        sequence_parallel=True,
    )
    torch.manual_seed(mesh.tp.index)
    if isinstance(overlap, ColumnOverlap):
        linear: torch.nn.Module = ColumnParallelLinear(place, H, F, bias=True, initial=normal(1.0), overlap=overlap)
        shapes = (S // tp, B, H), (S, B, F // tp)
    else:
        linear = RowParallelLinear(place, F, H, bias=False, initial=normal(1.0), overlap=overlap)
        shapes = (S, B, F // tp), (S // tp, B, H)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter)
    x, dy = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    return linear, x.requires_grad_(), dy


def once(events: list[str]) -> list[str]:
    return [event for i, event in enumerate(events) if i == 0 or events[i - 1] != event]


CASES: list[tuple[str, Overlap, str, str]] = [
    # the input goes round while its pieces are multiplied
    ("gather-in-a-ring", ColumnOverlap(fprop=RING), "forward", "{ring} multiply"),
    ("gather-first", ColumnOverlap(), "forward", "gather wait multiply"),
    ("gradient-in-a-ring", RowOverlap(dgrad=RING), "backward", "{ring} multiply"),
    ("gradient-first", RowOverlap(), "backward", "gather wait multiply"),
    # sums travel while the next product is computed
    ("scatter-in-a-ring", RowOverlap(fprop=RING), "forward", "multiply {sums}"),
    ("scatter-in-pieces", RowOverlap(fprop=PIPE), "forward", "multiply reduce multiply reduce multiply reduce wait"),
    ("scatter-last", RowOverlap(), "forward", "multiply reduce wait"),
    # backwards of a column: dx is the first product, dW the last
    ("bulk", ColumnOverlap(), "backward", "gather multiply reduce wait multiply wait"),
    ("no-bulk-dgrad", ColumnOverlap(dgrad=None), "backward", "gather wait multiply reduce multiply wait"),
    ("no-bulk-wgrad", ColumnOverlap(wgrad=None), "backward", "gather multiply reduce wait multiply"),
    (
        "dgrad-in-pieces",
        ColumnOverlap(dgrad=PIPE, wgrad=None),
        "backward",
        "gather multiply reduce multiply reduce multiply reduce wait multiply",
    ),
    ("dgrad-in-a-ring", ColumnOverlap(dgrad=RING, wgrad=None), "backward", "gather multiply {sums} multiply"),
]


@pytest.fixture(scope="module")
def events() -> dict[int, list[list[dict[str, list[str]]]]]:
    """Events of all cases by number of ranks, rank and case."""
    return {tp: run_ranks(recorded, tp, tp, [overlap for _, overlap, *_ in CASES]) for tp in (2, 4)}


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("number", range(len(CASES)), ids=[row[0] for row in CASES])
def test_pieces_are_under_way_before_the_products_that_hide_them(events: Any, number: int, tp: int) -> None:
    *_, where, expected = CASES[number]
    steps = " ".join(["shift multiply wait"] * (tp - 1))
    wanted = once(expected.format(ring=steps, sums=steps).split())
    for of_rank in events[tp]:
        assert of_rank[number][where] == wanted


PAIRS: list[tuple[Overlap, Overlap]] = [
    (ColumnOverlap(), ColumnOverlap(fprop=RING, dgrad=PIPE, wgrad=None)),
    (ColumnOverlap(), ColumnOverlap(fprop=RING, dgrad=RING, wgrad=None)),
    (RowOverlap(), RowOverlap(fprop=PIPE, dgrad=RING)),
    (RowOverlap(), RowOverlap(fprop=RING, dgrad=RING)),
]


def compared(_rank: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return outputs and gradients of overlapped linears beside those of plain ones."""
    mesh, pairs = tensor_mesh(4), []
    for plain, overlap in PAIRS:
        pairs += zip(*(results(mesh, form, dtype) for form in (plain, overlap)), strict=True)
    return pairs


def results(mesh: Mesh, overlap: Overlap, dtype: torch.dtype) -> list[Tensor]:
    linear, x, dy = case(mesh, overlap, dtype)
    y = linear(x)
    y = y if isinstance(y, Tensor) else y[0]
    y.backward(dy)
    return [y.detach(), x.grad, *(parameter.grad for parameter in linear.parameters())]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_forms_agree_in_lower_precision(dtype: torch.dtype, tolerance: float) -> None:
    for pairs in run_ranks(compared, 4, dtype):
        for plain, overlapped in pairs:
            assert overlapped.dtype == dtype
            assert (overlapped - plain).abs().max() <= tolerance * plain.abs().max()


def test_bulk_is_what_a_plain_run_does() -> None:
    assert ColumnOverlap() == ColumnOverlap(fprop=None, dgrad=BULK, wgrad=BULK)
