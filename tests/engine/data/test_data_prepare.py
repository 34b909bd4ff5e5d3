"""Preparing text: every token once, whatever is broken, empty, killed or repeated."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from primus.engine.config import TokenizerConfig
from primus.engine.data.indexed import IndexedDataset
from primus.engine.data.prepare import PrepareOptions, prepare, sources, train_tokenizer
from primus.engine.data.prepare.parts import Parts
from primus.engine.data.prepare.sources import LineCounter, cut_into_units, find_files, read_unit
from primus.engine.data.tokenizer import build_tokenizer
from primus.errors import InputError

NULL = TokenizerConfig(type="NullTokenizer", vocab_size=99)
ONE = PrepareOptions(workers=1)


def documents_of(prefix: Path) -> list[list[int]]:
    dataset = IndexedDataset(prefix)
    return [dataset[i].tolist() for i in range(len(dataset))]


def json_lines(file: Path, texts: list[str]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_empty_documents_are_reported_and_every_other_token_is_there_once(tmp_path: Path) -> None:
    json_lines(tmp_path / "in.jsonl", ["", "1 2", "3", "", "4 5 6", ""])
    report = prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    assert [place.rsplit(":", 1)[1] for place in report.empty] == ["1", "4", "6"]
    assert (report.documents, report.tokens) == (3, 9)
    assert documents_of(tmp_path / "out") == [[1, 2, 99], [3, 99], [4, 5, 6, 99]]


def test_broken_lines_stop_the_run_by_file_and_line_unless_they_may_be_skipped(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "1"}\nnot json\n{"other": 2}\n[3]\n{"text": 5}\n{"text": "6"}\n')
    with pytest.raises(InputError) as caught:
        prepare([str(file)], tmp_path / "out", NULL, ONE)
    for part in ("4 documents", f"{file}:2 is not JSON", f"{file}:3 has no text; it has other", ":4 is a list", ":5 has a int"):
        assert part in str(caught.value)
    assert not (tmp_path / "out.idx").exists()
    report = prepare([str(file)], tmp_path / "out", NULL, PrepareOptions(workers=1, skip_broken=True))
    assert (report.documents, len(report.broken)) == (2, 4)


def test_text_files_json_lines_and_parquet_in_a_folder_are_all_read(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "c.txt").write_text("7 8")
    json_lines(source / "a.jsonl", ["1", "2"])
    pq.write_table(pa.table({"text": ["3", "4", "5"]}), source / "b.parquet", row_group_size=2)
    prepare([str(source)], tmp_path / "out", NULL, PrepareOptions(workers=1, append_eod=False))
    assert documents_of(tmp_path / "out") == [[1], [2], [3], [4], [5], [7, 8]]


def test_lines_that_cross_the_cut_of_units_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus.engine.data.prepare.sources._SMALLEST_UNIT", 37)
    texts = [f"text number {i}" * (i % 4) for i in range(60)]
    json_lines(tmp_path / "in.jsonl", texts)
    units = cut_into_units([tmp_path / "in.jsonl"])
    found = [document for unit in units for document in read_unit(unit, "text")]
    assert len(units) > 20
    assert [document.text for document in found] == texts
    lines = LineCounter()
    numbers = [lines.before(unit) + document.line for unit in units for document in read_unit(unit, "text")]
    assert numbers == list(range(1, 61))


def test_existing_output_needs_overwrite_and_foreign_files_stay(tmp_path: Path) -> None:
    json_lines(tmp_path / "in.jsonl", ["1"])
    (tmp_path / "out.txt").write_text("mine")
    prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    with pytest.raises(InputError, match=r"exist already.*--overwrite"):
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, PrepareOptions(workers=1, overwrite=True))
    assert (tmp_path / "out.txt").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.bin", "out.idx", "out.txt"]


def test_a_refusal_leaves_no_parts_if_none_is_done(tmp_path: Path) -> None:
    json_lines(tmp_path / "in.jsonl", ["1", "x"])
    with pytest.raises(InputError, match=r"leave it out with --skip-broken:\n"):
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": ' * 200_000, "is nested too deeply"),
        ('{"text": "1", "n": ' + "9" * 5000 + "}", "is not JSON: Exceeds the limit .* for integer string conversion"),
        ('{"body": "1"}', "has no text; it has body .--json-key names the field"),
    ],
    ids=["deep", "long integer", "other field"],
)
def test_a_line_that_is_odd_in_any_way_is_named_and_may_be_skipped(line: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f'{{"text": "1"}}\n{line}\n{{"text": "2"}}\n')
    with pytest.raises(InputError, match=rf"{file}:2 {problem}"):
        prepare([str(file)], tmp_path / "out", NULL, ONE)
    assert prepare([str(file)], tmp_path / "out", NULL, PrepareOptions(workers=1, skip_broken=True)).documents == 2


@pytest.mark.parametrize("name", ["b.txt", "b.txt.gz", "b.jsonl", "b.jsonl.gz", "b.parquet"])
def test_a_file_that_cannot_be_read_is_named_alone_and_may_be_skipped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / name).write_text("no" * 1_000_000)
    (tmp_path / "c.txt").write_text("2")
    opened = io.open

    def refuse(file: Any, *words: Any, **more: Any) -> Any:
        if str(file) == str(tmp_path / name) and not name.endswith((".gz", ".parquet")):
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *words, **more)

    monkeypatch.setattr(io, "open", refuse)
    inputs = [str(tmp_path / file) for file in ("a.txt", name, "c.txt")]
    with pytest.raises(InputError, match=rf"^1 document cannot be read; .*:\n  {tmp_path / name} cannot be read: .*$"):
        prepare(inputs, tmp_path / "out", NULL, ONE)
    report = prepare(inputs, tmp_path / "out", NULL, PrepareOptions(workers=1, skip_broken=True))
    assert (report.documents, report.num_broken) == (2, 1)
    assert report.broken[0].startswith(f"{tmp_path / name} cannot be read: ")


def test_a_file_that_may_be_read_again_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json_lines(tmp_path / "a.jsonl", ["1"])
    json_lines(tmp_path / "b.jsonl", ["2"])
    inputs = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    opened = sources._open

    def refuse(file: Path) -> Any:
        if file.name == "b.jsonl":
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file)

    monkeypatch.setattr(sources, "_open", refuse)
    with pytest.raises(InputError, match=r"b\.jsonl cannot be read: Permission denied"):
        prepare(inputs, tmp_path / "out", NULL, ONE)
    monkeypatch.undo()
    assert prepare(inputs, tmp_path / "out", NULL, ONE).documents == 2


def test_missing_input_and_input_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        prepare([str(tmp_path / "nope*")], tmp_path / "out", NULL, ONE)
    json_lines(tmp_path / "in.jsonl", ["", ""])
    with pytest.raises(InputError, match=r"no document with text \(2 empty"):
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)


@pytest.mark.slow  # starts processes and kills them
def test_killed_run_goes_on_and_writes_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(40):
        json_lines(source / f"{number:02d}.jsonl", [" ".join(str((i * number) % 99) for i in range(2000)) for _ in range(40)])
    prepare([str(source)], tmp_path / "whole", NULL, ONE)
    code = (
        "from pathlib import Path\nfrom primus.engine.config import TokenizerConfig\n"
        "from primus.engine.data.prepare import PrepareOptions, prepare\n"
        "if __name__ == '__main__':\n"
        f"    prepare([{str(source)!r}], Path({str(tmp_path / 'cut')!r}),"
        " TokenizerConfig(type='NullTokenizer', vocab_size=99), PrepareOptions(workers=1))\n"
    )
    (tmp_path / "run.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "run.py")], start_new_session=True)
    parts = tmp_path / "cut.parts"
    while len(list(parts.glob("*.json")) if parts.exists() else []) < 5:
        time.sleep(0.01)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file: file.stat().st_mtime_ns for file in parts.glob("*.json")}
    assert kept
    assert not (tmp_path / "cut.idx").exists()
    report = prepare([str(source)], tmp_path / "cut", NULL, ONE)
    assert report.documents == 1600
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"cut{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


def test_a_tokenizer_is_trained_on_what_is_text_and_the_rest_is_told(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("some words and some more words\n" * 20)
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\xff\xfe\x00")
    both = [str(tmp_path / name) for name in ("good.txt", "picture.txt")]
    trained = train_tokenizer(both, tmp_path / "tok", vocab_size=270, show_progress=False)
    assert (trained.num_read, trained.num_broken) == (1, 1)
    assert "picture.txt is not UTF-8" in trained.broken[0]
    with pytest.raises(InputError, match=r"no text to train a tokenizer on: .*picture.txt is not UTF-8"):
        train_tokenizer(both[1:], tmp_path / "none", vocab_size=270, show_progress=False)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="no text to train a tokenizer on: the files are empty"):
        train_tokenizer([str(tmp_path / "empty.txt")], tmp_path / "none", vocab_size=270, show_progress=False)
    assert not (tmp_path / "none").exists()


def test_trained_tokenizer_opens_as_a_hugging_face_folder_and_returns_the_text(tmp_path: Path) -> None:
    text = "def add(a, b):\n    return a + b  # añadir\n" * 50
    (tmp_path / "in.py").write_text(text)
    trained = train_tokenizer([str(tmp_path / "in.py")], tmp_path / "tok", vocab_size=300, show_progress=False)
    tokenizer = build_tokenizer(TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path / "tok")))
    assert tokenizer.vocab_size == trained.vocab_size <= 300
    ids = tokenizer.tokenize(text)
    assert tokenizer.detokenize(ids) == text
    assert tokenizer.eod not in ids
    prepare(
        [str(tmp_path / "in.py")],
        tmp_path / "out",
        TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path / "tok")),
        ONE,
    )
    assert documents_of(tmp_path / "out") == [[*ids, tokenizer.eod]]
    with pytest.raises(InputError, match="exists already"):
        train_tokenizer([str(tmp_path / "in.py")], tmp_path / "tok", vocab_size=300, show_progress=False)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_fit_their_dtype(vocab_size: int, dtype: type, tmp_path: Path) -> None:
    json_lines(tmp_path / "in.jsonl", [f"1 {vocab_size - 2}"])
    prepare(
        [str(tmp_path / "in.jsonl")], tmp_path / "out", TokenizerConfig(type="NullTokenizer", vocab_size=vocab_size - 1), ONE
    )
    assert IndexedDataset(tmp_path / "out").dtype == dtype
    assert documents_of(tmp_path / "out") == [[1, vocab_size - 2, vocab_size - 1]]


def test_many_processes_write_the_bytes_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus.engine.data.prepare.sources._SMALLEST_UNIT", 2000)
    json_lines(tmp_path / "in.jsonl", [" ".join(str(i * k % 99) for i in range(k % 40)) for k in range(400)])
    reports = [prepare([str(tmp_path / "in.jsonl")], tmp_path / f"out{n}", NULL, PrepareOptions(workers=n)) for n in (1, 3)]
    assert reports[0] == reports[1]
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"out1{suffix}").read_bytes() == (tmp_path / f"out3{suffix}").read_bytes()
    places = [int(place.rsplit(":", 1)[1]) for place in reports[0].empty]
    assert places == list(range(1, 401, 40))


def test_first_broken_unit_in_the_inputs_order_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus.engine.data.prepare.sources._SMALLEST_UNIT", 300)
    lines = [json.dumps({"text": "1 2 3"}) for _ in range(400)]
    lines[150], lines[390] = "first", "second"
    (tmp_path / "in.jsonl").write_text("\n\n".join(lines))
    for workers in (1, 2):
        with pytest.raises(InputError, match=r"1 document cannot be read.*\n.*in\.jsonl:301 is not JSON"):
            prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, PrepareOptions(workers=workers))
    report = prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, PrepareOptions(workers=1, skip_broken=True))
    assert [place.split()[0].rsplit(":", 1)[1] for place in report.broken] == ["301", "781"]
    assert (report.documents, report.num_broken) == (398, 2)


def test_what_the_tokenizer_refuses_is_reported_by_line(tmp_path: Path) -> None:
    json_lines(tmp_path / "in.jsonl", ["1", "two", "99", "3"])
    with pytest.raises(InputError) as caught:
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    assert "in.jsonl:2 cannot be tokenized: invalid literal" in str(caught.value)
    assert "in.jsonl:3 cannot be tokenized: ids reach from 99 to 99, the vocabulary from 0 to 98" in str(caught.value)


def test_a_text_that_the_tokenizer_has_no_id_for_is_reported_by_line(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="[UNK]"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    json_lines(tmp_path / "in.jsonl", ["a", "b", "a"])
    config = TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path))
    with pytest.raises(InputError, match=r"in\.jsonl:2 cannot be tokenized: WordLevel error: Missing \[UNK\] token"):
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", config, ONE)


def test_half_a_surrogate_pair_is_a_broken_document(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    train_tokenizer([str(tmp_path / "text.txt")], tmp_path / "tok", vocab_size=258, show_progress=False)
    json_lines(tmp_path / "in.jsonl", ["some", "\ud800", "text"])
    tokenizer = TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path / "tok"))
    report = prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", tokenizer, PrepareOptions(workers=1, skip_broken=True))
    assert (report.documents, report.num_broken) == (2, 1)
    assert report.broken == [f"{tmp_path}/in.jsonl:2 has half a surrogate pair under text, at character 0"]
    trained = train_tokenizer([str(tmp_path / "in.jsonl")], tmp_path / "other", vocab_size=258, show_progress=False)
    assert (trained.num_read, trained.broken) == (2, report.broken)


def test_gzipped_files_and_lines_of_text_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"text": "1 2"}\n{"text": "3"}\n')
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("4\n5")
    (tmp_path / "c.txt").write_text("6 7\n\n8\r\n")
    options = PrepareOptions(workers=1, append_eod=False)
    prepare([str(tmp_path)], tmp_path / "out" / "files", NULL, options)
    assert documents_of(tmp_path / "out" / "files") == [[1, 2], [3], [4, 5], [6, 7, 8]]
    inputs = [str(tmp_path / name) for name in ("a.jsonl.gz", "b.txt.gz", "c.txt")]
    report = prepare(inputs, tmp_path / "out" / "lines", NULL, PrepareOptions(workers=1, append_eod=False, text_lines=True))
    assert documents_of(tmp_path / "out" / "lines") == [[1, 2], [3], [4], [5], [6, 7], [8]]
    assert report.empty == [f"{tmp_path}/c.txt:2"]
    (tmp_path / "a.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:-12])
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read"):
        prepare([str(tmp_path / "a.jsonl.gz")], tmp_path / "out" / "cut", NULL, options)


def test_input_of_another_form_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"text": "1"}]')
    with pytest.raises(InputError, match=r"list\.json is one JSON list; write one object a line"):
        prepare([str(tmp_path / "list.json")], tmp_path / "out", NULL, ONE)
    pq.write_table(pa.table({"body": ["1"]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="has no column text; it has body: choose one with --json-key"):
        prepare([str(tmp_path / "in.parquet")], tmp_path / "out", NULL, ONE)
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(InputError, match=r"bad\.parquet cannot be read: "):
        prepare([str(tmp_path / "bad.parquet")], tmp_path / "out", NULL, ONE)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8: .* at byte 3"):
        prepare([str(tmp_path / "latin.txt")], tmp_path / "out", NULL, ONE)


def test_parts_of_other_work_are_not_used_and_foreign_folders_not_touched(tmp_path: Path) -> None:
    json_lines(tmp_path / "a.jsonl", ["1"])
    json_lines(tmp_path / "b.jsonl", ["x"])
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    with pytest.raises(InputError, match=rf"--skip-broken \(which goes on from what is done, in {tmp_path}/out\.parts\)"):
        prepare(both, tmp_path / "out", NULL, ONE)
    assert (tmp_path / "out.parts" / "manifest").exists()
    (tmp_path / "out.parts" / "mine.txt").write_text("mine")
    json_lines(tmp_path / "in.jsonl", ["2", "3"])
    prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, ONE)
    assert documents_of(tmp_path / "out") == [[2, 99], [3, 99]]
    assert [file.name for file in (tmp_path / "out.parts").iterdir()] == ["mine.txt"]
    with pytest.raises(InputError, match=r"out\.parts exists and holds no parts of a dataset"):
        prepare([str(tmp_path / "in.jsonl")], tmp_path / "out", NULL, PrepareOptions(workers=1, overwrite=True))
    assert documents_of(tmp_path / "out") == [[2, 99], [3, 99]]


def test_a_tokenizer_that_was_trained_anew_makes_new_parts(tmp_path: Path) -> None:
    unit = cut_into_units([Path(__file__)])
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}")
    tokenizer = TokenizerConfig(type="HuggingFaceTokenizer", model=str(tmp_path / "tok"))

    def parts() -> Parts:
        return Parts(tmp_path / "out", unit, tokenizer, append_eod=True, json_key="text")

    parts().open()
    assert parts().are_ours()
    (tmp_path / "tok" / "tokenizer.json").write_text('{"version": 2}')
    assert not parts().are_ours()


def test_inputs_are_cut_into_neither_too_few_nor_too_many_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    json_lines(tmp_path / "in.jsonl", ["1"] * 1000)
    file = tmp_path / "in.jsonl"
    assert len(cut_into_units([file])) == 1
    for name, size in (("_SMALLEST_UNIT", 10), ("_USUAL_UNIT", 1000), ("_FEW_UNITS", 16), ("_MANY_UNITS", 64)):
        monkeypatch.setattr(f"primus.engine.data.prepare.sources.{name}", size)
    assert file.stat().st_size == 14_000
    assert len(cut_into_units([file])) == 16
    monkeypatch.setattr("primus.engine.data.prepare.sources._USUAL_UNIT", 100)
    assert len(cut_into_units([file])) == 65


@pytest.mark.slow  # starts processes and kills the first of them
def test_workers_leave_when_their_main_process_is_killed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(30):
        json_lines(source / f"{number:02d}.jsonl", [" ".join(str(i % 99) for i in range(2000)) for _ in range(200)])
    code = (
        "from pathlib import Path\nfrom primus.engine.config import TokenizerConfig\n"
        "from primus.engine.data.prepare import PrepareOptions, prepare\n"
        "if __name__ == '__main__':\n"
        f"    prepare([{str(source)!r}], Path({str(tmp_path / 'out')!r}),"
        " TokenizerConfig(type='NullTokenizer', vocab_size=99), PrepareOptions(workers=2))\n"
    )
    (tmp_path / "run.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "run.py")], start_new_session=True)
    parts = tmp_path / "out.parts"
    while len(list(parts.glob("*.json")) if parts.exists() else []) < 3:
        time.sleep(0.01)
        assert process.poll() is None
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("workers outlived their main process")


@pytest.mark.parametrize(("name", "method"), [("shut", "iterdir"), ("shut/a.txt", "stat")])
def test_input_in_a_folder_that_may_not_be_read_is_named(
    name: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "shut").mkdir()
    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(InputError, match=rf"^input {tmp_path}/{name}: .* cannot be read: Permission denied$"):
        find_files([str(tmp_path / name)])
