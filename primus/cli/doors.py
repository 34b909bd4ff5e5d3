"""The front doors by framework: the keys each understands and the builder that makes a container of them.

A door is imported when it is used, so that a verb pays only for its own.
"""

import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from primus.core.experiment import Experiment, Module
from primus.core.keys import Key, check_values
from primus.errors import ConfigError, InputError

if TYPE_CHECKING:
    from primus.backends.megatron.argument_builder import Built

__all__ = ["FRAMEWORKS", "build", "fewest_ranks", "keys_of", "only_module", "sections_of"]

FRAMEWORKS = ("megatron", "megatron_bridge")
"""Frameworks that can be run."""


def keys_of(framework: str) -> Mapping[str, Key]:
    """Return the rows of a framework; InputError if it has no door."""
    rows: Mapping[str, Key] = _rows(framework).KEYS
    return rows


def sections_of(framework: str) -> Mapping[str, str]:
    """Return the titles of a framework's chapters by number; InputError if it has no door."""
    titles: Mapping[str, str] = _rows(framework).SECTIONS
    return titles


def build(experiment: Experiment, module: Module, world_size: int) -> "Built":
    """Build the container of a module; ConfigError lists every problem."""
    framework = str(module.framework.value)
    _check_door(framework)
    if framework == "megatron":
        from primus.backends.megatron.argument_builder import MegatronArgBuilder

        return MegatronArgBuilder(experiment, module, world_size, experiment.run_folder).build()
    from primus.backends.megatron_bridge.build import MegatronBridgeBuilder

    return MegatronBridgeBuilder(experiment, module, world_size, experiment.run_folder).build()


def fewest_ranks(module: Module) -> int:
    """Return the ranks of one model replica; wrong degrees count as 1 and are reported by the build."""
    from primus.backends.megatron.patches.args.batch import DEGREES

    framework = str(module.framework.value)
    if framework != "megatron":
        from primus.backends.megatron_bridge.build import degrees

        return degrees(module)
    typed = check_values(keys_of(framework), module.params).typed
    return math.prod(max(1, typed[key].value) for key in DEGREES if key in typed)


def only_module(experiment: Experiment, role: str) -> Module:
    """Return the module to run: the one called `role`, or the only one there is."""
    modules = experiment.modules
    if role in modules:
        return modules[role]
    if len(modules) == 1:
        return next(iter(modules.values()))
    raise ConfigError(f"{experiment.file} has the modules {', '.join(modules)}, and none is called {role}; name one so.")


def _rows(framework: str) -> Any:
    """Return the module with a framework's rows and the titles of its chapters."""
    _check_door(framework)
    return importlib.import_module(f"primus.backends.{framework}.keys")


def _check_door(framework: str) -> None:
    if framework not in FRAMEWORKS:
        raise InputError(f"framework {framework} is not known; there are {', '.join(FRAMEWORKS)}")
