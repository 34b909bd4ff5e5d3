"""Samples from a run's folder: where its checkpoint lies, and what a prompt may be."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import build_container, train

from primus.engine.config import serialize
from primus.engine.data.sft.chat import ChatReader
from primus.engine.data.tokenizer.null import NullTokenizer
from primus.engine.train.sample import continuation, sample_run
from primus.errors import InputError

RUN = {"save": "checkpoints", "save_interval": 1, "train_iters": 2, "num_layers": 1, "log_interval": 2, "lr": 0.1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    train(folder, "run", RUN)
    config = build_container(folder, "run", 1, RUN)
    Path(config.run.folder, "config.yaml").write_text(serialize.dump(config))
    return Path(config.run.folder)


def sampled(run: Path, prompt: str = "1 2 3", **options: Any) -> str:
    sampling = {"max_new_tokens": 3, "temperature": 1.0, "top_p": 0.0, "seed": 0}
    return sample_run(run / "config.yaml", prompt=prompt, **{**sampling, **options})


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """Return a copy of the run at a place that its config.yaml does not know."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_a_moved_or_copied_run_uses_its_own_checkpoints(run: Path, copy: Path) -> None:
    assert sampled(copy) == sampled(run)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(InputError, match=f"{copy}/checkpoints holds no whole checkpoint"):
        sampled(copy)


def test_an_older_checkpoint_is_chosen_by_its_iteration(run: Path, copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints/iter_0000002")
    assert sampled(run, ckpt_step=1) == sampled(copy) != sampled(run) == sampled(run, ckpt_step=2)
    with pytest.raises(InputError, match=r"--ckpt-step 5: .* holds no whole checkpoint of that iteration; there are 1, 2"):
        sampled(run, ckpt_step=5)


def test_an_answer_follows_the_template_and_ends_with_its_turn(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = int(sampled(run, max_new_tokens=1))
    for ends, text in (([], sampled(run)), ([first], "")):
        monkeypatch.setattr(ChatReader, "__init__", lambda *_: None)
        monkeypatch.setattr(ChatReader, "question", lambda _, prompt, ends=ends: ([int(each) for each in prompt], ends))
        assert sampled(run, "123", chat=True) == text


@pytest.mark.parametrize("prompt", ["Once upon", "1 9999", "-1"])
def test_a_prompt_that_the_tokenizer_cannot_read_is_the_users_to_mend(run: Path, prompt: str) -> None:
    with pytest.raises(InputError, match=r"--prompt .*NullTokenizer.* 0 to 94"):
        sampled(run, prompt)


def test_a_continuation_keeps_the_blank_before_it() -> None:
    tokenizer = NullTokenizer(95)
    assert continuation(tokenizer, [1, 2], [67, 11]) == " 67 11"
    assert continuation(tokenizer, [], [67, 11]) == "67 11"


def test_a_sample_longer_than_the_training_sequences_is_warned_of(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="primus"):
        sampled(run, max_new_tokens=29)
        assert caplog.messages == []
        sampled(run, max_new_tokens=30)
    (line,) = caplog.messages
    assert "3 tokens of the prompt and 30 new ones" in line
    assert "seq_length 32" in line
