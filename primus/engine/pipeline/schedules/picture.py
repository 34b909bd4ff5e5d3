"""Schedules as text and as pictures."""

from pathlib import Path
from typing import Any

from primus.engine.pipeline.schedules.simulate import Simulation
from primus.engine.pipeline.schedules.table import Op, Schedule

__all__ = ["draw", "figures", "row_text"]

_COLOURS = {"F": "#4878a8", "B": "#5f9e6e", "W": "#cc8963"}
_COPIES = {"O": ("^", "#333333", "on the host"), "R": ("v", "#b03a48", "comes back")}
"""Marker, colour and meaning."""


def row_text(schedule: Schedule, rank: int) -> str:
    """Return a row as words such as `F3`, with `.chunk` where a rank has several, and `/slice` where a sequence is cut."""
    return " ".join(_name(schedule, op) for op in schedule.rows[rank])


def figures(schedule: Schedule, simulation: Simulation) -> str:
    """Return what a step takes, in one line."""
    peaks = ", ".join(f"{peak:g}" for peak in simulation.peaks)
    return (
        f"{schedule.algorithm}: {simulation.makespan:g} units of time, {100 * simulation.bubble_fraction:.1f} % bubble, "
        f"waits by rank {', '.join(f'{bubble:g}' for bubble in simulation.bubbles)}, activations by rank {peaks} microbatches"
        f"{_on_host(simulation)}"
    )


def draw(schedule: Schedule, simulation: Simulation, file: Path) -> None:
    """Draw the step over time, a lane a rank; second chunks are lighter. The suffix chooses the format (.svg, .png, .pdf)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (max(6.0, min(40.0, simulation.makespan / 4)), 0.45 * schedule.num_ranks + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    centre: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6, "color": "white", "clip_on": True}
    for rank, (row, times) in enumerate(zip(schedule.rows, simulation.times, strict=True)):
        for op, (start, end) in zip(row, times, strict=True):
            if op.kind in _COPIES:
                marker, ink, _ = _COPIES[op.kind]
                axes.plot(start, rank + 0.35, marker=marker, color=ink, markersize=4, linestyle="none")
                continue
            colour = (_COLOURS[op.kind], 1.0 if op.chunk == 0 else 0.6)
            axes.broken_barh([(start, end - start)], (rank - 0.45, 0.9), facecolors=colour, edgecolor="white", linewidth=0.4)
            axes.text((start + end) / 2, rank, f"{op.microbatch}{_slice(schedule, op)}", **centre)
    axes.set(xlim=(0, simulation.makespan), ylim=(schedule.num_ranks - 0.5, -0.5), xlabel="time", ylabel="rank")
    axes.set_yticks(range(schedule.num_ranks))
    peak = max(simulation.peaks)
    axes.set_title(f"{schedule.algorithm}, {100 * simulation.bubble_fraction:.1f} % bubble, peak {peak:g} microbatches")
    names = {"F": "forward", "B": "input gradient" if schedule.splits_backward else "backward", "W": "weight gradient"}
    kinds = "FBW" if schedule.splits_backward else "FB"
    copies = _COPIES.values() if max(simulation.parked) else ()
    axes.legend(
        [
            *(axes.broken_barh([], (0, 0), facecolors=_COLOURS[kind]) for kind in kinds),
            *(axes.plot([], [], marker=marker, color=colour, linestyle="none")[0] for marker, colour, _ in copies),
        ],
        [*(names[kind] for kind in kinds), *(meaning for _, _, meaning in copies)],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=7,
    )
    figure.savefig(file, dpi=120)


def _on_host(simulation: Simulation) -> str:
    return f", on the host {', '.join(f'{parked:g}' for parked in simulation.parked)}" if max(simulation.parked) else ""


def _name(schedule: Schedule, op: Op) -> str:
    chunk = f".{op.chunk}" if schedule.num_chunks > 1 else ""
    return f"{op}{chunk}{_slice(schedule, op)}"


def _slice(schedule: Schedule, op: Op) -> str:
    return f"/{op.slice}" if schedule.num_slices > 1 else ""
