"""`primus config show`: every parameter of an experiment with the place where it was set, as text or JSON."""

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from primus.cli.config.resolve import Resolved, resolve
from primus.cli.words import ExperimentFile
from primus.core.experiment import META, Value, is_preset_source
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["show"]


def show(
    context: typer.Context,
    file: ExperimentFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show each parameter and where it was set. KEY=VALUE words behind FILE win over it."""
    resolved = resolve(file, context.args)
    typer.echo(json.dumps(_as_json(resolved), indent=2) if as_json else _as_text(resolved))
    if resolved.problems:
        raise ConfigError(resolved.problems)


def _as_json(resolved: Resolved) -> dict[str, object]:
    experiment = resolved.experiment
    meta = {name: _pair(getattr(experiment, name)) for name in META}
    modules = {
        role: {
            "framework": module.framework.value,
            "config": module.config.value,
            "model": module.model.value,
            "params": {name: _pair(value) for name, value in resolved.params[role].items()},
        }
        for role, module in experiment.modules.items()
    }
    return {**meta, "run_folder": str(experiment.run_folder), "modules": modules}


def _pair(value: Value) -> dict[str, object]:
    return {"value": value.value, "source": value.source}


def _as_text(resolved: Resolved) -> str:
    experiment = resolved.experiment
    lines = [_line(name, getattr(experiment, name), 14) for name in META]
    lines.append(f"{'run folder':14} {experiment.run_folder}")
    for role, module in experiment.modules.items():
        lines += ["", f"modules.{role}: framework {module.framework.value}, {module.config.value}, {module.model.value}", ""]
        params = resolved.params[role]
        width = max(len(name) for name in params)
        lines += [_line(name, value, width) for name, value in params.items()]
    return "\n".join(lines)


def _line(name: str, value: Value, width: int) -> str:
    """Return a value with its source and with what lost against it in other layers."""
    below = "".join(f", instead of {show_value(each.value)} ({each.source})" for each in _beaten(value))
    return f"{name:{width}} {show_value(value.value)}  # {value.source}{below}"


def _beaten(value: Value) -> Iterator[Value]:
    """Yield the value of each lower layer; what a preset merely inherits is its own layer, and equal presets agree."""
    layers = {_layer(value)}
    below = value.over
    while below is not None:
        is_agreement = is_preset_source(value.source) and below.value == value.value
        if _layer(below) not in layers and not is_agreement:
            layers.add(_layer(below))
            yield below
        below = below.over


def _layer(value: Value) -> str:
    """Return `primus/configs/modules`, `primus/configs/models`, or the file, variable or command line of the user."""
    parts = value.source.split("/")
    return "/".join(parts[:3]) if is_preset_source(value.source) else value.source.rpartition(":")[0] or value.source
