"""Preparing rows: what is reported, and that a preparation that is killed leaves nothing that passes for whole."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from test_sft_tokens import opener

from primus.engine.config import PackingConfig, SFTConfig
from primus.engine.data.sft import prepare
from primus.engine.data.sft.packed_files import read_packs
from primus.engine.data.sft.prepare import Places, prepare_rows
from primus.engine.data.sft.sources import open_splits
from primus.errors import InputError


@pytest.fixture
def rows(tmp_path):
    """Twenty rows of 5 to 24 letters, their answer and the end among them, one of 52, and two to validate on."""
    texts = [{"input": "a" * (2 + number), "output": "b"} for number in (*range(20), 47)]
    for name, lines in (("training", texts), ("validation", texts[:2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SFTConfig(train=str(tmp_path), packing=PackingConfig(size=32), prefer_own_validation=True)


def places(folder, *names):
    return Places(folder=folder, files={name: folder / f"{name}.parquet" for name in names}, metadata=folder / "meta.jsonl")


def prepared(rows, place, **options):
    return prepare_rows(open_splits(rows), opener(Path(rows.train), rows), place, **options)


def test_the_report_counts_what_became_of_the_rows(rows, tmp_path):
    training, validation = prepared(rows, places(tmp_path / "out", "training", "validation"))
    # Inputs: a token less than letters, blank, answer and end; the long row is cut to a sequence.
    lengths = [*range(4, 24), 31]
    assert (training.rows, training.tokens, training.longest) == (21, sum(lengths), 31)
    assert (training.trained_tokens, training.cut_rows, training.cut_tokens, training.mute_rows) == (63, 1, 20, 0)
    assert [count for _, count in training.lengths] == [lengths.count(length) for length in range(1, 33)]
    found, packs = read_packs([tmp_path / "out/training.parquet"], tmp_path / "arrays")
    assert sorted(found.lengths) == lengths
    assert training.packs.num_packs == len(packs)
    assert training.packs.packing_factor == pytest.approx(21 / len(packs), abs=1e-3)
    assert training.packs.packing_efficiency == pytest.approx(100 * sum(lengths) / (32 * len(packs)), abs=1e-3)
    assert training.packs.max_samples_per_bin == max(packs.counts)
    assert training.packs.min_packed_seqlen == min(sum(found.lengths[packs[n]]) for n in range(len(packs)))
    assert (validation.rows, validation.file) == (2, str(tmp_path / "out/validation.parquet"))
    entries = [json.loads(line) for line in (tmp_path / "out/meta.jsonl").read_text().splitlines()]
    assert [entry["pack_size"] for entry in entries] == [32, 32]
    assert json.loads((tmp_path / "out/report.json").read_text())[0]["trained_tokens"] == 63
    assert (tmp_path / "out/lengths.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(prepare, "draw_lengths", lambda *_: None)


@pytest.mark.usefixtures("no_pictures")
def test_what_is_there_is_replaced_only_on_request(rows, tmp_path):
    place = places(tmp_path / "out", "training")
    assert [report.split for report in prepared(rows, place)] == ["training"]
    with pytest.raises(InputError, match=r"training\.parquet exist already; choose another place, or give --overwrite"):
        prepared(rows, place)
    prepared(rows, place, overwrite=True)
    with pytest.raises(InputError, match="cannot be written"):
        prepared(rows, places(tmp_path / "training.jsonl" / "out", "training"))


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("stage", ["arrays", "files"])
def test_a_killed_preparation_leaves_nothing_that_passes_for_whole(rows, tmp_path, stage):
    place = places(tmp_path / "out", "training")

    def be_killed():
        # Everything is synced under another name before it gets its own.
        sync = os.fsync

        def last(file):
            sync(file)
            if stage == "arrays" or "parquet" in str(Path(f"/proc/self/fd/{file}").readlink()):
                os.kill(os.getpid(), signal.SIGKILL)

        os.fsync = last
        prepared(rows, place)

    process = multiprocessing.get_context("fork").Process(target=be_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not place.files["training"].exists()
    if stage == "arrays":
        assert not [file for file in tmp_path.rglob("*.npy") if not file.name.startswith(".")]
    (report,) = prepared(rows, place)
    found, _ = read_packs([place.files["training"]], tmp_path / "arrays")
    assert (report.rows, len(found)) == (21, 21)
    assert np.all(found.lengths > 0)
