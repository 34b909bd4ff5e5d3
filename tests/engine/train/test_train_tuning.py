"""Streams of rows begin where a run goes on, in the order that it asks for, and only for what it trains or evaluates on."""

import json
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from runs import build_container
from torch import Tensor

from primus.engine.checkpoint.state import TrainState
from primus.engine.config import ConfigContainer, SFTConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.data.samplers import Sampling, cyclic
from primus.engine.data.sft.batches import Batches
from primus.engine.data.tokenizer import Tokenizer
from primus.engine.parallel.mesh import single_mesh
from primus.engine.train import tuning
from primus.engine.train.tuning import TuningSources


class Letters:
    """A token a letter; the end is 0."""

    vocab_size, eod = 256, 0

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


PLAN = BatchPlan(global_batch_size=2, micro_batch_size=2, data_parallel_size=1, rampup=None, round_down=False)


@pytest.fixture
def rows(tmp_path: Path) -> SFTConfig:
    for name, first in (("training", "a"), ("validation", "A")):
        lines = [json.dumps({"input": chr(ord(first) + number), "output": "x"}) for number in range(7)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return SFTConfig(train=str(tmp_path))


@pytest.fixture
def config(tmp_path: Path) -> ConfigContainer:
    return build_container(tmp_path, "exp", 1, {"global_batch_size": 2, "micro_batch_size": 2, "eval_iters": 1})


def sources(config: ConfigContainer, rows: SFTConfig) -> TuningSources:
    return TuningSources(config, rows, cast(Tokenizer, Letters()), single_mesh(), PLAN)


def first_letters(tokens: Tensor) -> str:
    return "".join(map(chr, tokens[:, 0].tolist()))


def test_an_evaluation_goes_on_where_it_was(config: ConfigContainer, rows: SFTConfig) -> None:
    opened = sources(config, rows)
    for consumed, letters in ((0, "AB"), (4, "EF"), (6, "GA")):
        (found,) = opened.feeds(TrainState(consumed_valid_samples=consumed)).validation
        assert first_letters(next(iter(found.batches)).tokens) == letters
        assert (found.num_microbatches, found.samples) == (1, 2)


def test_loader_processes_are_as_many_as_are_asked_for(
    config: ConfigContainer, rows: SFTConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    made = partial(Batches, num_workers=0)
    monkeypatch.setattr(tuning, "Batches", lambda *args, num_workers: asked.append(num_workers) or made(*args))
    sources(replace(config, dataset=replace(config.dataset, num_workers=3)), rows)
    assert asked == [3, 3]


def test_rows_in_turn_are_those_of_the_cyclic_order(config: ConfigContainer, rows: SFTConfig) -> None:
    feeds = sources(config, replace(rows, order="cyclic")).feeds(TrainState(consumed_train_samples=2))
    found = [first_letters(batch.tokens) for batch in islice(feeds.train, 4)]
    sampling = Sampling(total=7, micro_batch_size=2, rank=0, size=1)
    drawn = islice(cyclic(sampling, 2, sharding=False), 4)
    assert found == ["".join(chr(ord("a") + number) for number in numbers) for numbers in drawn]


@pytest.mark.parametrize(
    ("changes", "has_train", "has_valid"), [({"eval_iters": 0}, True, False), ({"skip_train": True}, False, True)]
)
def test_nothing_is_opened_for_what_is_not_done(
    changes: dict[str, Any], has_train: bool, has_valid: bool, tmp_path: Path, rows: SFTConfig
) -> None:
    config = build_container(tmp_path, "exp", 1, {"global_batch_size": 2, "micro_batch_size": 2, "eval_iters": 1, **changes})
    feeds = sources(config, rows).feeds(TrainState())
    assert (next(feeds.train, None) is not None, len(feeds.validation) == 1) == (has_train, has_valid)
