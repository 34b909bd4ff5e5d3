"""Experiments as files: `read` writes one beside others and loads it as `exp.yaml` from the working folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from primus.core.experiment import Experiment, Value, load_experiment
from primus.errors import ConfigError

HEAD = """\
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: language_model.yaml
    overrides:
"""
"""Overrides begin on line 7."""


class Reader:
    """Writes files into the working folder and reads the experiment among them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> Path:
        """Write a file and return its path relative to the working folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return Path(name)

    def load(self, text: str, words: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Experiment:
        """Load `text` as exp.yaml."""
        return load_experiment(self.write("exp.yaml", text), words, env or {})

    def overrides(self, lines: str, words: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Mapping[str, Value]:
        """Load an experiment with these override lines; return its parameters."""
        indented = "".join(f"      {line}\n" for line in lines.splitlines())
        return self.load(HEAD + (indented or "      {}\n"), words, env).modules["pre_trainer"].params


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Return a reader in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path)


@pytest.fixture
def problems_of() -> Callable[..., str]:
    """Return a function that gives what a failing call reports."""

    def problems(call: Callable[..., object], *args: object, **kwargs: object) -> str:
        with pytest.raises(ConfigError) as refused:
            call(*args, **kwargs)
        return str(refused.value)

    return problems
