"""`primus data`: from text to a dataset through the command line."""

import json

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
    assert "1 empty documents left out:\n  in.jsonl:2" in prepared.err
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
    assert "1 broken documents left out:\n  in.jsonl:2 is not JSON" in skipped.err


def test_a_tokenizer_that_is_not_there_ends_with_code_2(primus, texts):
    outcome = primus("data", "prepare", texts, "--output-prefix", "out", "--tokenizer-type", "Nope")
    assert outcome.code == 2
    assert "tokenizer_type Nope is unknown; known are BertWordPieceCase, " in outcome.err
