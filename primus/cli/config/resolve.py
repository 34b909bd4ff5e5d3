"""The parameters of an experiment as the config verbs read them: typed by their rows where that is possible."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from primus.cli.doors import keys_of
from primus.core.experiment import Experiment, Module, Value, load_experiment
from primus.core.keys import check_values

__all__ = ["Resolved", "resolve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """An experiment with its values typed."""

    experiment: Experiment
    """As it was read."""
    params: Mapping[str, Mapping[str, Value]]
    """Parameters by role."""
    problems: list[str] = field(default_factory=list)
    """Unknown keys, wrong types and values outside of their range."""


def resolve(file: Path, words: Sequence[str]) -> Resolved:
    """Read an experiment; what its rows refuse keeps the value that was read and is listed as a problem."""
    experiment = load_experiment(file, words, os.environ)
    params: dict[str, dict[str, Value]] = {}
    problems: list[str] = []
    for role, module in experiment.modules.items():
        params[role], wrong = _values(module)
        problems += wrong
    return Resolved(experiment=experiment, params=params, problems=problems)


def _values(module: Module) -> tuple[dict[str, Value], list[str]]:
    framework = str(module.framework.value)
    if framework == "megatron_bridge":
        from primus.backends.megatron_bridge.resolved import resolved_values

        return resolved_values(module)
    checked = check_values(keys_of(framework), module.params)
    return {**module.params, **checked.typed}, checked.problems
