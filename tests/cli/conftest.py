"""The command line in this process: `primus` runs words as the shell would and gives exit code and both outputs."""

import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

TUNING = """\
work_group: g
user_name: u
exp_name: rows
workspace: out
modules:
  post_trainer:
    framework: megatron_bridge
    config: sft_trainer.yaml
    model: auto.yaml
    overrides:
      hf_path: model
      dataset: {dataset_root: rows}
      peft: none
      packed_sequence: true
      train_iters: 2
      global_batch_size: 1
      micro_batch_size: 1
      seq_length: 32
"""
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}


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


@pytest.fixture
def start(primus: Primus, became: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that runs `primus train pretrain --config tiny.yaml WORDS...` and starts what it becomes, forked."""
    from programs import Program

    from primus.engine.train.sinks import Report

    monkeypatch.setattr(Report, "close", lambda _self, *, failed: None)  # pictures take longest
    started: list[Program] = []

    def run(*words: str) -> Program:
        done = primus("train", "pretrain", "--config", "tiny.yaml", "bert_binary_head=false", *words)
        assert done.code == 0, done.err
        (_, _, module, *arguments), env = became[-1]
        main = importlib.import_module(module).main
        started.append(Program(main, *arguments, stderr=folder / f"said-{len(started)}", **{**env, "OMP_NUM_THREADS": "1"}))
        return started[-1]

    yield run
    for program in started:
        program.kill()


@pytest.fixture
def rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an experiment, a tokenizer that spells and rows of both kinds."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {chr(code): code - 31 for code in range(32, 127)}
    tokenizer = Tokenizer(models.WordLevel({"<e>": 0, **letters}, unk_token="<e>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<e>"])
    monkeypatch.setattr("primus.engine.data.sft.prepare.draw_lengths", lambda *_: None)
    for name in ("model", "rows"):
        (folder / name).mkdir()
    tokenizer.save(str(folder / "model/tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>"}
    (folder / "model/tokenizer_config.json").write_text(json.dumps(names))
    (folder / "model/config.json").write_text(json.dumps(MODEL))
    texts = [{"input": f"is it {number}", "output": "it is"} for number in range(9)]
    (folder / "rows/training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    (folder / "rows/validation.jsonl").write_text(json.dumps(texts[3]) + "\n")
    (folder / "exp.yaml").write_text(TUNING)
    return folder
