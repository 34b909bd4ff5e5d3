"""What `--dry-run` prints: who holds what, how much memory it takes, how long the run is and what it leaves behind."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

from primus.cli.mesh_picture import mesh_picture
from primus.cli.sizes import scaled, size, spans
from primus.core.plan import Place, Plan, plan_of
from primus.engine.config import ConfigContainer
from primus.engine.model.size import parameter_count

__all__ = ["show_plan"]

_LEAST_WIDTH = 120
"""Columns that the widest table takes; a pipe would otherwise count as 80."""


def show_plan(
    config: ConfigContainer,
    world_size: int,
    *,
    rank: int | None = None,
    hf_path: str | None = None,
    console: Console | None = None,
) -> None:
    """Print the plan of a run whose vocabulary size is known; `rank` is marked in the mesh.

    `hf_path` is the name under which the run asks for weights, though this machine may not have them.
    """
    console = console or Console(highlight=False)
    console.width = max(console.width, _LEAST_WIDTH)
    plan = plan_of(config, world_size)
    console.print(f"[bold]{config.run.exp_name}[/] would run in {config.run.folder}")
    console.print(_summary(config, plan, hf_path))
    console.print(_places(plan.places))
    if world_size > 1:
        console.print(mesh_picture(plan, rank))


def _summary(config: ConfigContainer, plan: Plan, hf_path: str | None) -> Table:
    train, save = config.train, config.checkpoint
    degrees = plan.layout.sizes()
    mesh = " x ".join(f"{axis} {degrees[axis]}" for axis in ("tp", "cp", "pp", "dp"))
    cut = f"{train.micro_batch_size} x data {degrees['dp']} x {plan.microbatches} microbatches"
    work = f"{plan.iterations:,d} iterations, {plan.samples:,d} samples, {plan.tokens:,d} tokens"
    flops = scaled(plan.flops_per_iteration, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))
    rows = [
        ("model", f"{parameter_count(config.model)}, {config.model.num_layers} layers, {config.mixed_precision.params_dtype}"),
        *_trained(config, plan),
        ("mesh", f"{mesh} = {plan.layout.world_size} ranks{_expert_mesh(config, plan)}"),
        ("batch", f"{train.global_batch_size:,d} samples = {cut}"),
        ("run", f"{work}, {flops} an iteration"),
        ("checkpoints", f"{plan.checkpoints} of {size(plan.checkpoint_bytes)} in {save.save}" if plan.checkpoints else "none"),
        ("starts from", _origin(config, hf_path)),
    ]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in rows:
        table.add_row(name, text)
    return table


def _trained(config: ConfigContainer, plan: Plan) -> list[tuple[str, str]]:
    """Return a line on adapters, if they are what is trained."""
    if config.peft is None:
        return []
    share = 100.0 * plan.trained / plan.parameters
    return [("trains", f"{plan.trained:,d} of {plan.parameters:,d} parameters ({share:.3g} %), peft {config.peft.scheme}")]


def _expert_mesh(config: ConfigContainer, plan: Plan) -> str:
    """Return how experts lie on the same ranks, if there are any."""
    if not config.model.moe.layers:
        return ""
    degrees = plan.layout.sizes("expert")
    return "; experts: " + " x ".join(f"{axis} {degrees[axis]}" for axis in ("tp", "ep", "pp", "dp"))


def _origin(config: ConfigContainer, hf_path: str | None) -> str:
    save = config.checkpoint
    newest = f"the newest checkpoint in {save.save}, if there is one, else " if save.auto_continue_train and save.save else ""
    if save.load:
        return f"{newest}{'the weights in' if save.finetune else 'the checkpoint in'} {save.load}"
    return newest + (save.pretrained_checkpoint or save.hf_path or hf_path or f"random weights (seed {config.rng.seed})")


def _places(places: Iterable[Place]) -> Table:
    table = Table(title="On each rank (* estimated)", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("pipeline", "ranks", "layers", "parameters", "weights", "gradients", "optimizer", "activations*", "total*"):
        table.add_column(name, justify="left" if name in ("ranks", "layers") else "right")
    for place in places:
        memory = place.memory
        sizes = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.total)
        layers = ", ".join(spans(tuple(chunk)) or "none" for chunk in place.layers)
        table.add_row(str(place.number), spans(place.ranks), layers, f"{place.parameters:,d}", *map(size, sizes))
    return table
