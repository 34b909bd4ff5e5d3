"""`primus data`: from text to a dataset through the command line."""

import json
import signal
import subprocess
import sys
import time

import pytest


@pytest.fixture
def texts(folder):
    """Write JSON lines with an empty document; return their file."""
    rows = ["first text", "", "second text", "third text"]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return "in.jsonl"


def test_text_becomes_a_tokenizer_and_a_dataset(primus, texts, folder):
    trained = primus("data", "train-tokenizer", texts, "--output", "tok", "--vocab-size", "260")
    assert trained.code == 0, trained.err
    assert "tok: 260 ids; use tokenizer_type HuggingFaceTokenizer and tokenizer_model tok" in trained.out
    prepared = primus("data", "prepare", texts, "--output-prefix", "out/text", "--tokenizer-model", "tok")
    assert prepared.code == 0, prepared.err
    assert "1 empty document left out:\n  in.jsonl:2" in prepared.err
    assert prepared.out.startswith("out/text: 3 documents, ")
    assert sorted(file.name for file in (folder / "out").iterdir()) == ["text.bin", "text.idx"]
    again = primus("data", "prepare", texts, "--output-prefix", "out/text", "--tokenizer-model", "tok")
    assert again.code == 2
    assert "out/text.bin, out/text.idx exist already" in again.err
    assert "--overwrite" in again.err


def test_datasets_are_merged_and_shown(primus, folder):
    for name, text in (("a", "1 2 3"), ("b", "4 5")):
        (folder / f"{name}.txt").write_text(text)
        words = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--no-append-eod")
        assert primus("data", "prepare", f"{name}.txt", "--output-prefix", name, *words).code == 0
    merged = primus("data", "merge", "a", "b", "--output-prefix", "ab")
    assert merged.code == 0, merged.err
    expected = "ab: 2 documents, 5 tokens (uint16), the longest document 3\n"
    assert merged.out == expected
    assert primus("data", "show", "ab").out == expected
    assert primus("data", "merge", "a", "b", "--output-prefix", "ab").code == 2
    assert primus("data", "show", "none").code == 2


def test_broken_lines_end_with_code_2_and_their_place(primus, folder):
    (folder / "in.jsonl").write_text('{"text": "1"}\nbroken\n')
    words = ("data", "prepare", "in.jsonl", "--output-prefix", "out", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9")
    stopped = primus(*words)
    assert stopped.code == 2
    assert "in.jsonl:2 is not JSON" in stopped.err
    skipped = primus(*words, "--skip-broken")
    assert skipped.code == 0
    assert "1 broken document left out:\n  in.jsonl:2 is not JSON" in skipped.err


def test_a_tokenizer_that_is_not_there_ends_with_code_2(primus, texts):
    outcome = primus("data", "prepare", texts, "--output-prefix", "out", "--tokenizer-type", "Nope")
    assert outcome.code == 2
    assert "tokenizer_type Nope is unknown; known are BertWordPieceCase, " in outcome.err


NUMBERS = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "9")
UNUSABLE = [
    ("", "output prefix . is a folder; add the name of the dataset's files"),
    ("sub/..", "output prefix sub/.. is a folder; add the name"),
    ("one.txt/sub/out", "output prefix one.txt/sub/out cannot be written: one.txt is a file, not a folder"),
    ("/proc/out", "output prefix /proc/out cannot be written: No such file or directory; choose another place"),
    ("taken", "output prefix taken: taken.bin is a folder"),
]


@pytest.fixture
def numbers(primus, folder):
    """Prepare the dataset `a`, and a folder in the way of another; return the text of the first."""
    (folder / "one.txt").write_text("1 2 3")
    (folder / "taken.bin").mkdir()
    assert primus("data", "prepare", "one.txt", "--output-prefix", "a", *NUMBERS).code == 0
    return "one.txt"


@pytest.mark.parametrize(("prefix", "message"), UNUSABLE, ids=["empty", "folder", "under a file", "no place", "taken"])
def test_output_that_cannot_be_made_is_refused_before_the_work(primus, numbers, folder, prefix, message):
    before = sorted(folder.iterdir())
    for words in (("prepare", numbers, *NUMBERS), ("merge", "a")):
        outcome = primus("data", *words, "--output-prefix", prefix, "--overwrite")
        assert outcome.code == 2
        assert f"error: {message}" in outcome.err
        assert len(outcome.err.splitlines()) == 1
    assert sorted(folder.iterdir()) == before


def test_a_tokenizer_is_not_trained_for_an_output_that_is_a_file(primus, numbers, folder, monkeypatch):
    monkeypatch.setattr("tokenizers.Tokenizer.train_from_iterator", lambda *_: pytest.fail("trained in vain"))
    outcome = primus("data", "train-tokenizer", numbers, "--output", "one.txt", "--vocab-size", "260")
    reason = "cannot be written: one.txt is a file, not a folder; choose another place"
    assert (outcome.code, outcome.err) == (2, f"error: output one.txt {reason}\n")
    (folder / "tok" / "tokenizer.json").mkdir(parents=True)
    outcome = primus("data", "train-tokenizer", numbers, "--output", "tok", "--vocab-size", "260", "--overwrite")
    assert (outcome.code, outcome.err) == (2, "error: output tok: tok/tokenizer.json is a folder; choose another place\n")


def test_a_full_disk_ends_with_code_3_in_one_line(primus, numbers, folder):
    before = sorted(folder.iterdir())
    for words in (("prepare", numbers, *NUMBERS), ("merge", "a")):
        (folder / "b.bin.tmp").symlink_to("/dev/full")
        outcome = primus("data", *words, "--output-prefix", "b")
        assert outcome.code == 3
        assert outcome.err.splitlines()[-1] == "error: b cannot be written: No space left on device"
    # What was tokenized stays, for the same command to go on.
    assert sorted(folder.iterdir()) == sorted([*before, folder / "b.parts"])
    (folder / "tok").mkdir()
    (folder / "tok" / "tokenizer.json.tmp").symlink_to("/dev/full")
    outcome = primus("data", "train-tokenizer", numbers, "--output", "tok", "--vocab-size", "260")
    assert (outcome.code, outcome.err) == (3, "error: tok cannot be written: No space left on device\n")
    assert not list((folder / "tok").iterdir())


def test_an_input_without_files_says_which_kind_it_is(primus, folder):
    (folder / "empty").mkdir()
    words = ("--output-prefix", "out", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9")
    assert primus("data", "prepare", "empty", *words).err == "error: input empty: the folder holds no file\n"
    assert "input gone: there is no such file or folder" in primus("data", "prepare", "gone", *words).err


def test_a_line_without_the_field_names_the_option(primus, folder):
    (folder / "in.jsonl").write_text('{"body": "1"}\n')
    words = ("data", "prepare", "in.jsonl", "--output-prefix", "out", "--tokenizer-type", "NullTokenizer", "--vocab-size", "9")
    assert "in.jsonl:1 has no text; it has body (--json-key names the field)" in primus(*words).err
    assert primus(*words, "--json-key", "body").code == 0


def test_training_a_tokenizer_draws_nothing_where_nobody_watches(texts, folder):
    words = ["data", "train-tokenizer", texts, "--output", "tok", "--vocab-size", "257"]
    done = subprocess.run([sys.executable, "-m", "primus.cli.main", *words], capture_output=True, text=True, check=True)
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


def test_sigterm_ends_preparing_without_a_word_of_pythons(folder):
    row = json.dumps({"text": "1 2 3 4 5 6 7 8 " * 1000}) + "\n"
    (folder / "in.jsonl").write_text(row * 1000)
    words = ("data", "prepare", "in.jsonl", "--output-prefix", "out", "--workers", "2", *NUMBERS)
    process = subprocess.Popen([sys.executable, "-m", "primus.cli.main", *words], stderr=subprocess.PIPE, text=True)
    while not (folder / "out.parts" / "000000.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Warning" not in said
    assert (folder / "out.parts" / "manifest").exists()
