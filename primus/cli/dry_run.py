"""What `--dry-run` prints: who holds what, how much memory it takes, how long the run is and what it leaves behind."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from primus.core.plan import Place, Plan, plan_of
from primus.engine.config import ConfigContainer

__all__ = ["show_plan"]

_LISTED_RANKS = 16
"""Larger runs are told by stage only."""
_LEAST_WIDTH = 110
"""Columns that the widest table takes; a pipe would otherwise count as 80."""


def show_plan(config: ConfigContainer, world_size: int, console: Console | None = None) -> None:
    """Print the plan of a run whose vocabulary size is known."""
    console = console or Console(highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    plan = plan_of(config, world_size)
    console.print(f"[bold]{config.run.exp_name}[/] would run in {config.run.folder}")
    console.print(_summary(config, plan))
    console.print(_places(plan.places))
    if 1 < world_size <= _LISTED_RANKS:
        console.print(_ranks(plan))


def _summary(config: ConfigContainer, plan: Plan) -> Table:
    train, save = config.train, config.checkpoint
    degrees = plan.layout.sizes()
    mesh = " x ".join(f"{axis} {degrees[axis]}" for axis in ("tp", "cp", "pp", "dp"))
    cut = f"{train.micro_batch_size} x data {degrees['dp']} x {plan.microbatches} microbatches"
    work = f"{plan.iterations:,d} iterations, {plan.samples:,d} samples, {plan.tokens:,d} tokens"
    flops = _scaled(plan.flops_per_iteration, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))
    rows = [
        ("model", f"{plan.parameters:,d} parameters, {config.model.num_layers} layers, {config.mixed_precision.params_dtype}"),
        ("mesh", f"{mesh} = {plan.layout.world_size} ranks"),
        ("batch", f"{train.global_batch_size:,d} samples = {cut}"),
        ("run", f"{work}, {flops} an iteration"),
        ("checkpoints", f"{plan.checkpoints} of {_size(plan.checkpoint_bytes)} in {save.save}" if plan.checkpoints else "none"),
        ("starts from", _origin(config)),
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in rows:
        table.add_row(name, text)
    return table


def _origin(config: ConfigContainer) -> str:
    save = config.checkpoint
    if save.auto_continue_train and save.save:
        return f"the newest checkpoint in {save.save}, if there is one"
    if save.load:
        return f"{'the weights in' if save.finetune else 'the checkpoint in'} {save.load}"
    return save.pretrained_checkpoint or f"random weights (seed {config.rng.seed})"


def _places(places: Iterable[Place]) -> Table:
    table = Table(title="On each rank (* estimated)", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("pipeline", "ranks", "layers", "parameters", "weights", "gradients", "optimizer", "activations*", "total*"):
        table.add_column(name, justify="left" if name in ("ranks", "layers") else "right")
    for place in places:
        memory = place.memory
        sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.total)
        layers = ", ".join(_spans(tuple(chunk)) or "none" for chunk in place.layers)
        table.add_row(str(place.number), _spans(place.ranks), layers, f"{place.parameters:,d}", *map(_size, sizes))
    return table


def _ranks(plan: Plan) -> Table:
    table = Table(title="Where each rank stands", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("rank", "tensor", "context", "pipeline", "data"):
        table.add_column(name, justify="right")
    for rank in range(plan.layout.world_size):
        place = plan.layout.coordinates(rank)
        table.add_row(*map(str, (rank, place.tp, place.cp, place.pp, place.dp)))
    return table


def _size(num_bytes: int) -> str:
    return _scaled(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _scaled(amount: float, base: int, units: Sequence[str]) -> str:
    """Return three digits and the unit that suits them."""
    power = 0
    while amount >= base and power < len(units) - 1:
        amount, power = amount / base, power + 1
    return f"{amount:.3g} {units[power]}" if amount < 1000 else f"{amount:.0f} {units[power]}"


def _spans(ranks: tuple[int, ...]) -> str:
    """Return ascending numbers as spans: `0-3, 8-11`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
