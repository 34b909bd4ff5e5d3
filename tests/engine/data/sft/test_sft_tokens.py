"""Tokens of rows on disk: equal to those made one by one, made once, made anew when what decides them differs."""

import json
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from runs import build_container
from test_sft_samples import Letters

from primus.engine.config import PackingConfig, SFTConfig
from primus.engine.data.sft import opening
from primus.engine.data.sft import tokens as tokens_module
from primus.engine.data.sft.opening import Opener
from primus.engine.data.sft.rows import JsonLines
from primus.engine.data.sft.samples import Samples
from primus.engine.data.sft.tokens import tokenised
from primus.errors import InputError, RunError


def written(file: Path, rows: int = 30, size: int = 9) -> SFTConfig:
    random = np.random.default_rng(1)
    texts = ({"input": "a" * int(random.integers(1, size)), "output": "b"} for _ in range(rows))
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return SFTConfig(train=str(file), packing=PackingConfig(size=32))


def opener(folder: Path, rows: SFTConfig, *, letters: int = 256, **keys: object) -> Opener:
    tokenizer = Letters()
    tokenizer.vocab_size = letters
    ranks = 2 if "context_parallel_size" in keys else 1
    return Opener.of(build_container(folder, "exp", ranks, {"seq_length": 32, **keys}), rows, tokenizer)


def test_samples_from_disk_are_those_that_are_made_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_CHUNK", 4)
    rows = JsonLines(Path(written(tmp_path / "rows.jsonl", size=20).train))
    samples = Samples(rows, SFTConfig(train="rows"), Letters(), tokenizer_model=None, max_length=12)
    told = []
    found = tokenised(samples, tmp_path / "a", {}, workers=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 30) for done in (*range(4, 29, 4), 30)]
    for number in range(30):
        one, other = found[number], samples[number]
        assert (one.ids.tolist(), one.trained.tolist(), one.lost) == (other.ids.tolist(), other.trained.tolist(), other.lost)
    assert found.lost.max() > 0
    assert found.num_trained.tolist() == [int(samples[number].trained[1:].sum()) for number in range(30)]
    alone = tokenised(samples, tmp_path / "b", {}, workers=1)
    assert np.array_equal(alone.ids, found.ids)


def test_rows_are_tokenised_once_until_something_differs(tmp_path, monkeypatch):
    rows = written(tmp_path / "rows.jsonl")
    made = []
    reading = Samples.__getitem__
    monkeypatch.setattr(Samples, "__getitem__", lambda self, number: made.append(number) or reading(self, number))

    def count(config: SFTConfig, **keys: object) -> int:
        made.clear()
        opener(tmp_path, config, **keys).open(JsonLines(Path(config.train)), "training")
        return len(made)

    assert count(rows) == 30
    assert count(rows) == 0
    assert count(replace(rows, seed=5)) == 0, "other packs of the same tokens"
    assert count(replace(rows, packing=None)) == 0, "what a run with packs made serves one without"
    assert count(rows, seq_length=24) == 30
    assert count(replace(rows, loss_on="all")) == 30
    os.utime(rows.train, ns=(1, 1))
    assert count(rows) == 30
    damaged = next((tmp_path / "packed" / "NullTokenizer").glob("*-ids.npy"))
    for file in damaged.parent.glob("*-ids.npy"):
        file.write_bytes(file.read_bytes()[:-20])
    assert count(rows) == 30


def test_packs_are_kept_and_depend_on_the_seed(tmp_path):
    rows = written(tmp_path / "rows.jsonl")
    asked = (rows, rows, replace(rows, seed=5))
    packs = [opener(tmp_path, each).open(JsonLines(Path(rows.train)), "training").packs for each in asked]
    bins = [[each[number] for number in range(len(each))] for each in packs]
    assert bins[0] == bins[1] != bins[2]
    assert sorted(chain.from_iterable(bins[0])) == list(range(30))


def test_samples_of_packs_are_cut_filled_up_and_tokenised_as_asked(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(opening, "tokenised", lambda *args, workers, **more: asked.append(workers) or tokenised(*args, **more))
    rows = written(tmp_path / "rows.jsonl", size=20)
    packing = replace(rows.packing, max_sample_length=12, pad_multiple=8)
    found = opener(tmp_path, replace(rows, packing=packing, workers=3)).open(JsonLines(Path(rows.train)), "training")
    assert found.samples.lengths.max() == 11
    filled = -(-found.samples.lengths // 8) * 8
    sums = [int(filled[found.packs[number]].sum()) for number in range(len(found.packs))]
    assert max(sums) == 32, "samples have room as they are filled up"
    assert asked == [3]


def test_that_samples_are_cut_or_mute_is_counted(tmp_path, caplog):
    config = replace(written(tmp_path / "rows.jsonl", size=60), loss_on="answers")
    opener(tmp_path, config).open(JsonLines(Path(config.train)), "training")
    assert any("training: " in text and " of 30 samples are cut" in text for text in caplog.messages)


def test_a_folder_that_cannot_be_used_is_named_with_its_key(tmp_path):
    rows = replace(written(tmp_path / "rows.jsonl"), cache="/proc/none")
    said = r"/proc/none/NullTokenizer cannot be used: .* set dataset\.dataset_kwargs\.index_mapping_dir"
    with pytest.raises(InputError, match=said):
        opener(tmp_path, rows).open(JsonLines(Path(rows.train)), "training")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_is_no_sample_leaves_nothing_behind(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(tokens_module, "_CHUNK", 4)
    rows = replace(written(tmp_path / "rows.jsonl"), workers=workers)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"input": "a"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl:31 has no field output"):
        opener(tmp_path, rows).open(JsonLines(Path(rows.train)), "training")
    assert not list((tmp_path / "packed").rglob("*.*"))


def test_a_process_that_is_killed_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "_CHUNK", 4)
    rows = replace(written(tmp_path / "rows.jsonl"), workers=2)
    monkeypatch.setattr(Samples, "__getitem__", lambda self, number: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RunError, match="a process that tokenised rows was killed, perhaps for want of memory"):
        opener(tmp_path, rows).open(JsonLines(Path(rows.train)), "training")


def test_rows_of_a_file_larger_than_memory_are_tokenised(tmp_path):
    line = json.dumps({"input": "a" * 100_000, "output": "b"}) + "\n"
    (tmp_path / "rows.jsonl").write_text(line * 400)
    config = SFTConfig(train=str(tmp_path / "rows.jsonl"))

    def work(answer):
        held = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (held + (24 << 20),) * 2)
        rows = JsonLines(tmp_path / "rows.jsonl")
        made = tokenised(Samples(rows, config, Short(), tokenizer_model=None, max_length=99), tmp_path / "cache", {}, workers=1)
        try:
            (tmp_path / "rows.jsonl").read_bytes()
        except MemoryError:
            answer.put((len(made), made[399].ids.tolist()))

    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    process = context.Process(target=work, args=(answer,))
    process.start()
    process.join()
    assert not answer.empty(), "the file fits into memory, or its rows do not"
    assert answer.get() == (400, [5, 5, 0])


class Short(Letters):
    """A token a text."""

    def tokenize(self, text):
        return [5] if text.strip() else []
