"""Packed files: what is written is read as it was, others' files too; a run refuses what was not made for it."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_sft_tokens import opener, written

from primus.engine.config import PackingConfig
from primus.engine.data.sft.own_packs import open_packs
from primus.engine.data.sft.packed_files import made_with, packed_files, read_packs, write_packs
from primus.engine.data.sft.packing import Packs
from primus.engine.data.sft.rows import JsonLines
from primus.engine.data.sft.tokens import Tokens
from primus.errors import InputError

SAMPLES = [([1, 2, 3, 9], [0, 0, 1, 1]), ([4, 5, 9], [0, 1, 1]), ([6, 7], [1, 0])]
"""Tokens, and which are learnt; the first of none is, whatever is said."""


def tokens():
    ids, trained = (np.concatenate([pair[part] for pair in SAMPLES]) for part in (0, 1))
    bounds = np.cumsum([0, *(len(pair[0]) for pair in SAMPLES)])
    return Tokens(ids.astype(np.int32), trained.astype(bool), bounds, np.zeros(3, np.int32))


def held(read):
    """Return the packs as lists of samples."""
    found, packs = read
    samples = [found[number] for number in range(len(found))]
    return [[(samples[n].ids.tolist(), samples[n].trained.tolist()) for n in packs[pack]] for pack in range(len(packs))]


EXPECTED = [[([4, 5, 9], [False, True, True]), ([1, 2, 3, 9], [False, False, True, True])], [([6, 7], [False, False])]]
ROWS = [
    {"input_ids": [4, 5, 9, 1, 2, 3, 9], "loss_mask": [1, 1, 0, 0, 1, 1, 0], "seq_start_id": [0, 3]},
    {"input_ids": [6, 7], "loss_mask": [0, 0], "seq_start_id": [0]},
]
"""What Megatron Bridge holds of them: the mask is that of the next token."""


def test_packs_are_read_as_they_were_written(tmp_path):
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    write_packs(file, tokens(), Packs(np.array([1, 0, 2]), np.array([0, 2, 3])), {"seed": 3})
    assert parquet.read_table(file).to_pylist() == ROWS
    assert held(read_packs([file], tmp_path / "arrays")) == EXPECTED
    assert made_with([file]) == {"seed": 3}
    assert [each.name for each in tmp_path.glob(".*")] == []


def test_files_of_others_are_read(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(ROWS[:1]), tmp_path / "a.parquet")
    parquet.write_table(pa.Table.from_pylist(ROWS[1:]), tmp_path / "b.parquet")
    for spec in (str(tmp_path), str(tmp_path / "*.parquet")):
        files = packed_files(spec)
        assert held(read_packs(files, tmp_path / "arrays")) == EXPECTED
        assert made_with(files) is None
    np.save(tmp_path / "c.npy", np.array(ROWS, dtype=object), allow_pickle=True)
    assert held(read_packs([tmp_path / "c.npy"], tmp_path / "arrays")) == EXPECTED


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.parquet", "no file of packed samples is there"),
        ("text.txt", "those end in .parquet or .npy"),
        ("cut.parquet", "cut.parquet cannot be read"),
        ("other.parquet", "lacks one of input_ids, loss_mask, seq_start_id"),
        ("damaged.parquet", "damaged.parquet, pack 1 is damaged"),
        ("evil.npy", "it asks for posix.mkdir, which is no array"),
    ],
)
def test_files_that_are_none_of_packs_are_named(name, said, tmp_path, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    Path("text.txt").touch()
    write_packs(Path("cut.parquet"), tokens(), Packs(np.array([1, 0, 2]), np.array([0, 2, 3])), {})
    Path("cut.parquet").write_bytes(Path("cut.parquet").read_bytes()[:-9])
    parquet.write_table(pa.table({"text": ["a"]}), "other.parquet")
    parquet.write_table(pa.Table.from_pylist([ROWS[0], {**ROWS[1], "loss_mask": [0]}]), "damaged.parquet")
    with Path("evil.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
        file.write(pickle.dumps(Evil()))

    def read():
        files = packed_files(name)
        made_with(files)
        read_packs(files, tmp_path / "arrays")

    with pytest.raises(InputError, match=said):
        read()
    assert not Path("made-by-a-pickle").exists()


@pytest.fixture
def packed(tmp_path):
    """Write rows and their packs; return what a run on the packs says of its data."""
    rows = written(tmp_path / "rows.jsonl")
    made = opener(tmp_path, rows)
    opened = made.open(JsonLines(Path(rows.train)), "training")
    write_packs(tmp_path / "packs.parquet", opened.samples, opened.packs, made.note(JsonLines(Path(rows.train))))
    return replace(rows, packing=replace(rows.packing, train_file=str(tmp_path / "packs.parquet")))


def refusal(folder, rows, **keys):
    with pytest.raises(InputError) as caught:
        open_packs(opener(folder, rows, **keys), rows.packing.train_file, "packed_train_data_path", "training")
    assert str(caught.value).startswith(f"packed_train_data_path {folder}/packs.parquet: ")
    return str(caught.value)


def test_a_run_reads_the_packs_that_it_would_have_made(packed, tmp_path):
    made = opener(tmp_path, packed)
    own, read = (
        made.open(JsonLines(Path(packed.train)), "training"),
        open_packs(made, packed.packing.train_file, "key", "training"),
    )
    for number in range(len(own.packs)):
        mine, theirs = ([each.samples[n].ids.tolist() for n in each.packs[number]] for each in (own, read))
        assert mine == theirs


def test_a_run_refuses_packs_that_something_else_decided(packed, tmp_path):
    said = refusal(tmp_path, packed, seq_length=24)
    assert "length is 32 there and 24 here" in said
    assert "packing.seed is 1234 there and 7 here" in refusal(tmp_path, replace(packed, seed=7))
    assert "loss_on is answers there and all here" in refusal(tmp_path, replace(packed, loss_on="all"))
    template = replace(packed.prompt_format, template="Q: {input}\nA: {output}")
    assert "prompt_format.template is None there and Q: {input}" in refusal(tmp_path, replace(packed, prompt_format=template))
    long = replace(packed.prompt_format, template="Q: {input}\n" + 60 * "-" + "\nA: {output}")
    assert r"prompt_format.template is None there and 'Q: {input}\n---" in refusal(
        tmp_path, replace(packed, prompt_format=long)
    )
    assert "tokenizer.vocab_size is 256 there and 300 here" in refusal(tmp_path, packed, letters=300)
    assert "packing.multiple is 1 there and 4 here" in refusal(tmp_path, packed, context_parallel_size=2)


def test_what_was_said_of_packs_is_held_to_the_run(packed, tmp_path):
    (tmp_path / "meta.jsonl").write_text(json.dumps({"pack_size": 64}) + "\n")
    with_metadata = replace(packed, packing=replace(packed.packing, metadata_file=str(tmp_path / "meta.jsonl")))
    assert "tells of packs of 64 tokens, and a sequence has 32" in refusal(tmp_path, with_metadata)
    (tmp_path / "meta.jsonl").write_text("{")
    assert f"packed_metadata_path {tmp_path}/meta.jsonl cannot be read" in refusal(tmp_path, with_metadata)


def test_foreign_packs_that_do_not_fit_are_refused(tmp_path, caplog):
    write = opener(tmp_path, replace(written(tmp_path / "rows.jsonl"), packing=PackingConfig(size=32)))
    file = tmp_path / "packs.npy"

    def saved(length, token):
        row = {"input_ids": [token] * length, "loss_mask": [1] * length, "seq_start_id": [0]}
        np.save(file, np.array([row], dtype=object), allow_pickle=True)
        return open_packs(write, str(file), "key", "training")

    assert len(saved(33, 5).packs) == 1
    assert "does not say which tokenizer, template and seed made it" in caplog.text
    with pytest.raises(InputError, match="a pack of it has 33 tokens, a sequence 32"):
        saved(34, 5)
    with pytest.raises(InputError, match="it holds ids from 256 to 256, and the tokenizer has 256"):
        saved(9, 256)
