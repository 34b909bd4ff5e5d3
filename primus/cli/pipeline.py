"""`primus pipeline`: schedules on paper: their tables, pictures, waits and peaks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus.errors import InputError

if TYPE_CHECKING:  # a slow start for every other command, otherwise
    from primus.engine.pipeline.schedules import Algorithm, Costs, Schedule, Simulation

__all__ = ["app"]

app = typer.Typer(name="pipeline", help="Look at pipeline schedules before a run.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="As pp_algorithm.", metavar="ALGORITHM")]
Ranks = Annotated[int, typer.Option("--pp", min=1, help="Pipeline ranks.")]
Microbatches = Annotated[int, typer.Option("--microbatches", "-m", min=1, help="Microbatches of a step.")]
Chunks = Annotated[int | None, typer.Option("--vp", min=1, help="Chunks a rank; by default what the schedule needs.")]
Group = Annotated[int | None, typer.Option("--group-size", help="As microbatch_group_size_per_vp_stage.")]
Slices = Annotated[int, typer.Option("--slices", min=1, help="As num_seq_splits.")]
Memory = Annotated[float | None, typer.Option("--max-mem", help="As pp_max_mem: microbatches a rank may hold.")]
Forward = Annotated[float, typer.Option("--cost-f", min=0.0, help="Time of a forward of a chunk.")]
InputGrad = Annotated[float, typer.Option("--cost-b", min=0.0, help="Time of its input gradient.")]
WeightGrad = Annotated[float, typer.Option("--cost-w", min=0.0, help="Time of its weight gradients.")]
Transfer = Annotated[float, typer.Option("--cost-comm", min=0.0, help="Time of a transfer between ranks.")]


@app.command()
def show(
    algorithm: Name,
    pp: Ranks = 4,
    microbatches: Microbatches = 8,
    vp: Chunks = None,
    group_size: Group = None,
    slices: Slices = 1,
    max_mem: Memory = None,
    cost_f: Forward = 1.0,
    cost_b: InputGrad = 1.0,
    cost_w: WeightGrad = 1.0,
    cost_comm: Transfer = 0.0,
) -> None:
    """Print each rank's operations, and what a step takes."""
    from primus.engine.pipeline.schedules import Costs
    from primus.engine.pipeline.schedules.picture import figures, row_text

    costs = Costs(forward=cost_f, input_grad=cost_b, weight_grad=cost_w, transfer=cost_comm)
    schedule, simulation = _planned(algorithm, pp, microbatches, vp, group_size, slices, max_mem, costs)
    for rank in range(pp):
        typer.echo(f"rank {rank}: {row_text(schedule, rank)}")
    typer.echo(figures(schedule, simulation))


@app.command()
def plot(
    algorithm: Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture; .svg, .png or .pdf.")],
    pp: Ranks = 4,
    microbatches: Microbatches = 8,
    vp: Chunks = None,
    group_size: Group = None,
    slices: Slices = 1,
    max_mem: Memory = None,
    cost_f: Forward = 1.0,
    cost_b: InputGrad = 1.0,
    cost_w: WeightGrad = 1.0,
    cost_comm: Transfer = 0.0,
) -> None:
    """Draw a step over time."""
    from primus.engine.pipeline.schedules import Costs
    from primus.engine.pipeline.schedules.picture import draw, figures

    if output.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--output {output}: the picture's name ends with .svg, .png or .pdf")
    costs = Costs(forward=cost_f, input_grad=cost_b, weight_grad=cost_w, transfer=cost_comm)
    schedule, simulation = _planned(algorithm, pp, microbatches, vp, group_size, slices, max_mem, costs)
    try:
        draw(schedule, simulation, output)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from error
    typer.echo(f"{output}: {figures(schedule, simulation)}")


@app.command()
def compare(
    pp: Ranks = 4,
    microbatches: Microbatches = 8,
    max_mem: Memory = None,
    cost_f: Forward = 1.0,
    cost_b: InputGrad = 1.0,
    cost_w: WeightGrad = 1.0,
    cost_comm: Transfer = 0.0,
) -> None:
    """Compare all schedules: time of a step, bubble, most activations. Costs are of a whole rank; its chunks share them."""
    from rich.console import Console
    from rich.table import Table

    from primus.engine.pipeline.schedules import ALGORITHMS, Costs

    table = Table("schedule", "chunks", "time", "bubble %", "peak, microbatches")
    left_out = []
    for algorithm in ALGORITHMS:
        chunks = 1 if algorithm in ("1f1b", "zero-bubble", "zero-bubble-heuristic") else 2
        costs = Costs(forward=cost_f / chunks, input_grad=cost_b / chunks, weight_grad=cost_w / chunks, transfer=cost_comm)
        try:
            _, step = _planned(algorithm, pp, microbatches, None, None, 1, max_mem, costs)
        except InputError as error:
            left_out.append(f"{algorithm}: {error}")
            continue
        peak = max(step.peaks)
        table.add_row(algorithm, str(chunks), f"{step.makespan:g}", f"{100 * step.bubble_fraction:.1f}", f"{peak:g}")
    Console().print(table)
    for line in left_out:
        typer.echo(line, err=True)


def _planned(
    name: str,
    pp: int,
    microbatches: int,
    vp: int | None,
    group_size: int | None,
    slices: int,
    max_mem: float | None,
    costs: "Costs",
) -> "tuple[Schedule, Simulation]":
    from primus.engine.pipeline.schedules import build_schedule, simulate

    schedule = build_schedule(
        _algorithm(name),
        pp,
        microbatches,
        num_chunks=vp,
        group_size=group_size,
        num_slices=slices,
        costs=costs,
        max_memory=max_mem,
    )
    return schedule, simulate(schedule, costs)


def _algorithm(name: str) -> "Algorithm":
    from primus.engine.pipeline.schedules import ALGORITHMS

    for algorithm in ALGORITHMS:
        if algorithm == name:
            return algorithm
    raise InputError(f"{name} is not a schedule; there are {', '.join(ALGORITHMS)}")
