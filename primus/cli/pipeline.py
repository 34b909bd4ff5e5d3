"""`primus pipeline`: schedules on paper: their tables, pictures, waits and peaks."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from primus.cli.words import examples
from primus.errors import InputError

if TYPE_CHECKING:  # a slow start for every other command, otherwise
    from primus.engine.config.offload import OffloadConfig
    from primus.engine.pipeline.schedules import Algorithm, Costs, Schedule, Simulation

__all__ = ["app"]

app = typer.Typer(name="pipeline", help="Look at pipeline schedules before a run.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="As pp_algorithm, or 1f1b-v or group-interleaved.", metavar="ALGORITHM")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A step to plan: the options that the verbs share."""

    pp: Annotated[int, typer.Option("--pp", min=1, help="Pipeline ranks.")] = 4
    microbatches: Annotated[int, typer.Option("--microbatches", "-m", min=1, help="Microbatches of a step.")] = 8
    max_mem: Annotated[float | None, typer.Option("--max-mem", help="As pp_max_mem: microbatches a rank may hold.")] = None
    cost_f: Annotated[float, typer.Option("--cost-f", min=0.0, help="Time of a rank's forward; its chunks share it.")] = 1.0
    cost_b: Annotated[float, typer.Option("--cost-b", min=0.0, help="Time of its input gradients.")] = 1.0
    cost_w: Annotated[float, typer.Option("--cost-w", min=0.0, help="Time of its weight gradients.")] = 1.0
    cost_comm: Annotated[float, typer.Option("--cost-comm", min=0.0, help="Time of a transfer between ranks.")] = 0.0
    cost_copy: Annotated[
        float, typer.Option("--cost-copy", min=0.0, help="Time in which a rank's activations go to the host, or come back.")
    ] = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """How a schedule cuts its work; by default as it usually does."""

    vp: Annotated[int | None, typer.Option("--vp", min=1, help="Chunks a rank; by default what the schedule needs.")] = None
    group_size: Annotated[
        int | None, typer.Option(min=1, help="As microbatch_group_size_per_vp_stage, or interleave_group_size.")
    ] = None
    slices: Annotated[
        int, typer.Option("--slices", min=1, help="Slices of a sequence; 1f1b over several is known as seq1f1b.")
    ] = 1
    offload: Annotated[
        int, typer.Option("--offload", min=0, help="First chunks of a rank that are on the host between forward and backward.")
    ] = 0


def _with_options(*kinds: type[_Step] | type[_Shape]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a verb take the fields of dataclasses as options, and hand it one object of each."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[len(kinds) :]
        options = [parameter for kind in kinds for parameter in inspect.signature(kind, eval_str=True).parameters.values()]

        @wraps(verb)
        def command(**values: Any) -> None:
            parts = [kind(**{each.name: values.pop(each.name) for each in fields(kind)}) for kind in kinds]
            verb(*parts, **values)

        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *options)]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


@app.command(epilog=examples("primus pipeline show zero-bubble --pp 4 --microbatches 8"))
@_with_options(_Step, _Shape)
def show(step: _Step, shape: _Shape, algorithm: Name) -> None:
    """Print each rank's operations, and what a step takes."""
    from primus.engine.pipeline.schedules.picture import figures, row_text

    schedule, simulation = _planned(algorithm, step, shape)
    for rank in range(step.pp):
        typer.echo(f"rank {rank}: {row_text(schedule, rank)}")
    typer.echo(figures(schedule, simulation))


@app.command(epilog=examples("primus pipeline plot 1f1b --pp 4 --output step.svg"))
@_with_options(_Step, _Shape)
def plot(
    step: _Step,
    shape: _Shape,
    algorithm: Name,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Picture; .svg, .png or .pdf.")],
) -> None:
    """Draw a step over time."""
    from primus.engine.pipeline.schedules.picture import draw, figures

    if output.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--output {output}: the picture's name ends with .svg, .png or .pdf")
    schedule, simulation = _planned(algorithm, step, shape)
    try:
        draw(schedule, simulation, output)
    except OSError as error:
        raise InputError(f"--output {output} cannot be written: {error.strerror}") from error
    typer.echo(f"{output}: {figures(schedule, simulation)}")


@app.command(epilog=examples("primus pipeline compare --pp 8 --microbatches 32"))
@_with_options(_Step)
def compare(
    step: _Step,
    slices: Annotated[int, typer.Option("--slices", min=2, help="Slices of a sequence in the row of seq1f1b.")] = 2,
) -> None:
    """Compare all schedules: time of a step, bubble, most activations."""
    from rich.console import Console
    from rich.table import Table

    from primus.engine.pipeline.schedules import ALGORITHMS, OFFLOADING

    table = Table("schedule", "chunks", "time", "bubble %", "peak, microbatches")
    left_out = []
    shapes = [(name, _Shape()) for name in ALGORITHMS]
    shapes += [("1f1b", _Shape(slices=slices)), *((name, _Shape(offload=1)) for name in OFFLOADING)]
    for algorithm, shape in shapes:
        try:
            schedule, simulation = _planned(algorithm, step, shape)
        except InputError as error:
            left_out.append(f"{algorithm}: {error}")
            continue
        bubble, peak = 100 * simulation.bubble_fraction, max(simulation.peaks)
        name = f"{schedule.algorithm}, {slices} slices" if schedule.num_slices > 1 else algorithm
        name += ", offloaded" * bool(shape.offload)
        table.add_row(name, str(schedule.num_chunks), f"{simulation.makespan:g}", f"{bubble:.1f}", f"{peak:g}")
    Console().print(table)
    for line in left_out:
        typer.echo(line, err=True)


def _planned(name: str, step: _Step, shape: _Shape) -> "tuple[Schedule, Simulation]":
    from primus.engine.pipeline.schedules import build_schedule, simulate

    schedule = build_schedule(
        _algorithm(name),
        step.pp,
        step.microbatches,
        num_chunks=shape.vp,
        group_size=shape.group_size,
        num_slices=shape.slices,
        costs=_costs(step),
        max_memory=_limit(step),
        offload=_offload(step, shape),
    )
    return schedule, simulate(schedule, _costs(step, schedule.num_chunks * schedule.num_slices))


def _costs(step: _Step, parts: int = 1) -> "Costs":
    """Return the costs of one operation, where a rank's work on a microbatch is that of several."""
    from primus.engine.pipeline.schedules import Costs

    times = (step.cost_f, step.cost_b, step.cost_w, step.cost_comm, step.cost_copy)
    if not all(map(math.isfinite, times)) or not any(times[:3]):
        raise InputError("costs must be finite, and one of --cost-f, --cost-b and --cost-w more than 0")
    forward, input_grad, weight_grad = (cost / parts for cost in (step.cost_f, step.cost_b, step.cost_w))
    return Costs(
        forward=forward, input_grad=input_grad, weight_grad=weight_grad, transfer=step.cost_comm, copy=step.cost_copy / parts
    )


def _limit(step: _Step) -> float | None:
    if step.max_mem is not None and not math.isfinite(step.max_mem):
        raise InputError(f"--max-mem {step.max_mem} is not a number of microbatches; leave it away for no limit")
    return step.max_mem


def _offload(step: _Step, shape: _Shape) -> "OffloadConfig":
    from primus.engine.config.offload import OffloadConfig

    work = step.cost_f + step.cost_b + step.cost_w
    return OffloadConfig(tensors="all", num_chunks=shape.offload, time=step.cost_copy / work)


def _algorithm(name: str) -> "Algorithm":
    from primus.engine.pipeline.schedules import ALGORITHMS

    for algorithm in ALGORITHMS:
        if algorithm == name:
            return algorithm
    raise InputError(f"{name} is not a schedule; there are {', '.join(ALGORITHMS)}")
