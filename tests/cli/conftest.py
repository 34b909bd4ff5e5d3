"""The command line in this process: `primus` runs words as the shell would and gives exit code and both outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from primus.cli.main import main

TINY = """\
work_group: amd
user_name: ann
exp_name: tiny
workspace: out
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama_tiny.yaml
    overrides:
      mock_data: true
      tokenizer_type: NullTokenizer
      vocab_size: 95
      train_iters: 6
      lr_warmup_iters: 0
      finetune: false
      global_batch_size: 8
      micro_batch_size: 1
      bf16: false
      dataloader_type: single
      seq_length: 64
      num_workers: 0
"""


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str


Primus = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder that holds tiny.yaml, with no launcher's variables around."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


@pytest.fixture
def primus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Primus:
    """Return a function that runs `primus WORDS...`."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["primus", *words])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Collect the commands that the process would have become."""
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("primus.cli.run.become", lambda command, env: calls.append((command, dict(env))))
    return calls
