"""What `--dry-run --world-size N --rank R` prints besides: what one rank holds, down to its tensors, and what it exchanges."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from primus.cli.sizes import size, spans
from primus.engine.parallel.layout import Layout
from primus.engine.rehearsal.record import Collective, Memory, Record

__all__ = ["show_rehearsal"]

_LEAST_WIDTH = 120
_LONGEST_LIST = 60
"""Characters of a list of ranks."""
_PHASES = ("forward", "backward", "between stages", "gradients", "update", "loss")


def show_rehearsal(record: Record, layout: Layout, console: Console | None = None) -> None:
    """Print a record."""
    console = console or Console(highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    at = layout.coordinates(record.rank)
    sizes = layout.sizes()
    numbers = {
        "tensor": (at.tp, sizes["tp"]),
        "context": (at.cp, sizes["cp"]),
        "pipeline": (at.pp, sizes["pp"]),
        "data": (at.dp, sizes["dp"]),
    }
    experts = layout.sizes("expert")["ep"]
    if experts > 1:
        (group,) = (group for group in layout.groups("ep", grid="expert") if record.rank in group)
        numbers["expert"] = (group.index(record.rank), experts)
    place = ", ".join(f"{axis} {number} of {count}" for axis, (number, count) in numbers.items())
    console.print(f"[bold]rank {record.rank} of {record.world_size}[/]: {place}")
    if record.groups:
        console.print(_groups(record))
    console.print(_parameters(record))
    console.print(_memory(record))
    if record.collectives:
        console.print(_collectives(record.collectives))
    console.print(
        f"Built and run for a step on the meta device in {record.seconds:.0f} s with {size(record.resident_bytes)}; "
        "sent: what leaves the rank if collectives go round rings."
    )


def _table(title: str, columns: Sequence[str], *, left: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right")
    return table


def _groups(record: Record) -> Table:
    table = _table("Its groups", ("group", "ranks", "its place", "members"), left=("group", "members"))
    for group in record.groups:
        members = spans(group.ranks)
        if len(members) > _LONGEST_LIST:
            members = f"{members[:_LONGEST_LIST].rpartition(', ')[0]}, ... {group.ranks[-1]}"
        table.add_row(group.axis, str(len(group.ranks)), str(group.index), members)
    return table


def _parameters(record: Record) -> Table:
    title = f"Its parameters: {record.num_parameters:,d}"
    table = _table(title, ("parameter", "times", "on this rank", "whole", "dtype"), left=("parameter", "dtype"))
    for kind in record.parameters:
        table.add_row(kind.name, str(kind.count), _shape(kind.local), _shape(kind.whole), kind.dtype)
    return table


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _memory(record: Record) -> Table:
    alive = f"{record.num_alive:g} of {record.num_microbatches} microbatches at a time, schedule {record.algorithm}"
    memory = record.memory
    rows = [
        ("weights", memory.weights, ""),
        ("gradients", memory.gradients, ""),
        ("main weights", memory.main_weights, "wider copies, or none"),
        ("optimizer state", memory.optimizer_state, ""),
        ("other", memory.other, "tables of positions and the like"),
        ("activations", memory.activations, alive),
        ("update", memory.update, "beside what is held, after the activations are gone"),
        ("at most", memory.peak, _share(memory)),
    ]
    table = _table("Its memory", ("kind", "bytes", "remark"), left=("kind", "remark"))
    for kind, num_bytes, remark in rows:
        table.add_row(kind, size(num_bytes), remark)
    return table


def _share(memory: Memory) -> str:
    return f"{size(memory.held)} of it held from step to step"


def _collectives(rows: Sequence[Collective]) -> Table:
    columns = ("group", "ranks", "when", "what", "calls a step", "a call", "a step", "sent a step")
    table = _table("What it exchanges", columns, left=("group", "when", "what"))
    for row in sorted(rows, key=lambda row: (row.size, row.axis, _PHASES.index(row.phase), row.kind)):
        table.add_row(
            row.axis,
            str(row.size),
            row.phase,
            row.kind,
            f"{row.count:,d}",
            size(row.num_bytes // max(row.count, 1)),
            size(row.num_bytes),
            size(row.sent_bytes),
        )
    table.add_section()
    table.add_row("", "", "", "all", f"{sum(row.count for row in rows):,d}", "", "", size(sum(row.sent_bytes for row in rows)))
    return table
