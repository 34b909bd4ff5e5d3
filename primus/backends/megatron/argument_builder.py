"""`MegatronArgBuilder`: one module's flat Megatron keys to the container that the engine reads.

Four passes, in this order: each value against its row, derivations that rewrite values, rules across keys, the container. The
passes never stop at a first mistake: one ConfigError carries them all.
"""

from dataclasses import dataclass
from pathlib import Path

from primus.backends.megatron.announcements import announce
from primus.backends.megatron.keys import KEYS
from primus.backends.megatron.origins import path_origins
from primus.backends.megatron.params import Params, Unreadable
from primus.backends.megatron.patches.args.order import DERIVATIONS, RULES
from primus.backends.megatron.to_container import sources, to_container
from primus.core.experiment import Experiment, Module
from primus.core.keys import check_params
from primus.engine.config import ConfigContainer, RunConfig
from primus.errors import ConfigError

__all__ = ["Built", "MegatronArgBuilder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What the front door hands on."""

    config: ConfigContainer
    """The run."""
    sources: dict[str, str]
    """Container path to where its value was set, for values that the user set or that are not the container's default."""
    notices: list[str]
    """Lines the user reads at start."""
    origins: dict[str, str]
    """File or folder to `key, source` of what named it."""


class MegatronArgBuilder:
    """Turns a module of an experiment into a container for a number of ranks."""

    def __init__(
        self, experiment: Experiment, module: Module, world_size: int, run_folder: Path, *, has_rows: bool = False
    ) -> None:
        """`has_rows`: there are rows to fine-tune on, so no documents are asked for."""
        self._module = module
        self._world_size, self._has_rows = world_size, has_rows
        self._run = RunConfig(
            work_group=experiment.work_group.value,
            user_name=experiment.user_name.value,
            exp_name=experiment.exp_name.value,
            folder=str(run_folder.absolute()),
        )

    def build(self) -> Built:
        """Return the container with its sources and notices; ConfigError lists every problem."""
        params, problems, notices = self._checked()
        params = _derive(params, notices)
        problems += _broken_rules(params)
        if problems:
            raise ConfigError(dict.fromkeys(problems))
        notices += announce(params)
        config = to_container(params, KEYS)
        return Built(config=config, sources=sources(config, params, KEYS), notices=notices, origins=path_origins(params))

    def _checked(self) -> tuple[Params, list[str], list[str]]:
        typed, problems, notices = check_params(KEYS, self._module.params, self._module.defaults)
        params = Params(
            values={**self._module.params, **typed},
            run=self._run,
            world_size=self._world_size,
            working_folder=Path.cwd(),
            unreadable=frozenset(KEYS) - frozenset(typed),
            has_rows=self._has_rows,
        )
        return params, problems, notices


def _derive(params: Params, notices: list[str]) -> Params:
    for derive in DERIVATIONS:
        try:
            rewrites = tuple(derive(params))
        except Unreadable:
            continue
        for rewrite in rewrites:
            params = params.rewritten(rewrite)
            notices += [rewrite.notice] if rewrite.notice else []
    return params


def _broken_rules(params: Params) -> list[str]:
    problems: list[str] = []
    for rule in RULES:
        try:
            problems.extend(rule(params))
        except Unreadable:
            continue
    return problems
