"""Experiments as a user writes them: a YAML file on disk, built for a number of ranks."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny import TINY

from primus.backends.megatron.argument_builder import Built, MegatronArgBuilder
from primus.core.experiment import load_experiment
from primus.errors import ConfigError

SMALL: dict[str, Any] = {
    **TINY,
    "num_layers": 4,
    "vocab_size": 96,
    "transformer_impl": "local",
    "deterministic_mode": True,
    "use_cpu_initialization": True,
    "bias_gelu_fusion": False,
    "cross_entropy_loss_fusion": False,
}
"""A few hundred thousand parameters on synthetic data."""

Build = Callable[..., Built]
ProblemsOf = Callable[..., tuple[str, ...]]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that builds SMALL with overrides, leaving the keys in `without` to the presets."""
    monkeypatch.chdir(tmp_path)

    def build_small(
        overrides: Mapping[str, Any] | None = None,
        *,
        world_size: int = 1,
        without: Iterable[str] = (),
        base: Mapping[str, Any] = SMALL,
        config: str = "pre_trainer.yaml",
        model: str = "language_model.yaml",
        env: Mapping[str, str] | None = None,
    ) -> Built:
        kept = {key: value for key, value in base.items() if key not in set(without)}
        values = {**kept, **(overrides or {})}
        module = {"framework": "megatron", "config": config, "model": model, "overrides": values}
        whole = {
            "work_group": "amd",
            "user_name": "ann",
            "exp_name": "tiny",
            "workspace": str(tmp_path / "out"),
            "modules": {"pre_trainer": module},
        }
        file = Path("exp.yaml")
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        experiment = load_experiment(file, (), env or {})
        return MegatronArgBuilder(experiment, experiment.modules["pre_trainer"], world_size, tmp_path / "run").build()

    return build_small


@pytest.fixture
def problems_of(build: Build) -> ProblemsOf:
    """Return a function that gives the problems which a build reports."""

    def problems(*args: Any, **kwargs: Any) -> tuple[str, ...]:
        with pytest.raises(ConfigError) as refused:
            build(*args, **kwargs)
        return refused.value.problems

    return problems
