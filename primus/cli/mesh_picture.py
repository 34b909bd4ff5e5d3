"""The mesh as a picture in text: a row for each place in the pipeline, a column for ranks that see the same tokens."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from primus.cli.sizes import spans
from primus.core.plan import Place, Plan
from primus.engine.parallel.layout import Coordinates, Layout

__all__ = ["mesh_picture", "place_text"]

_COLUMNS = 5
"""Wider meshes are cut in the middle."""

Column = tuple[int, int]
"""Data and context coordinate."""


def mesh_picture(plan: Plan, rank: int | None = None) -> Table:
    """Return the picture; the cell of `rank` is marked, and its column is always there."""
    layout = plan.layout
    marked = None if rank is None else layout.coordinates(rank)
    cells = _cells(layout)
    table = Table(title=_title(layout), title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("pipeline", justify="right")
    table.add_column("holds")
    columns = list(_columns(layout, marked))
    for column in columns:
        table.add_column("..." if column is None else _head(layout, column), justify="right")
    for place in plan.places:
        row = ("" if column is None else _cell(cells[place.number, column], rank) for column in columns)
        table.add_row(str(place.number), place_text(place), *row)
    return table


def place_text(place: Place) -> str:
    """Return what a place in the pipeline holds."""
    layers = [spans(tuple(chunk)) for chunk in place.layers if len(chunk)]
    parts = [f"layers {' and '.join(layers)}"] if layers else []
    return ", ".join(["embedding"] * place.has_embedding + parts + ["output"] * place.has_output) or "nothing"


def _title(layout: Layout) -> str:
    tensor = f", each cell its {layout.tensor} tensor-parallel ranks in order" if layout.tensor > 1 else ""
    return f"Which rank holds what{tensor}"


def _head(layout: Layout, column: Column) -> str:
    data, context = column
    return f"data {data}" + (f"\ncontext {context}" if layout.context > 1 else "")


def _cell(ranks: list[int], rank: int | None) -> str:
    return f"[bold]>{spans(ranks)}[/]" if rank in ranks else spans(ranks)


def _cells(layout: Layout) -> dict[tuple[int, Column], list[int]]:
    """Return the tensor-parallel ranks of every place, in the order of their coordinate."""
    cells: dict[tuple[int, Column], list[int]] = {}
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        cells.setdefault((at.pp, (at.dp, at.cp)), []).append(rank)
    return cells


def _columns(layout: Layout, marked: Coordinates | None) -> Iterator[Column | None]:
    """Yield the columns to show; None stands for those left out."""
    every = [(data, context) for data in range(layout.data) for context in range(layout.context)]
    shown = set(range(len(every)))
    if len(every) > _COLUMNS:
        shown = {*range(_COLUMNS - 2), len(every) - 1}
        if marked is not None:
            shown.add(every.index((marked.dp, marked.cp)))
    last = -1
    for number in sorted(shown):
        if number > last + 1:
            yield None
        yield every[number]
        last = number
