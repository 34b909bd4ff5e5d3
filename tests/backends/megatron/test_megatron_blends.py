"""The grammar of blends, and the files that hold them."""

from pathlib import Path

import pytest

from primus.backends.megatron.blends import BlendError, parse_blend, read_split_lists, read_words


@pytest.mark.parametrize(
    ("words", "prefixes", "weights"),
    [
        ("a", ["a"], None),
        (["a", "b"], ["a", "b"], None),
        ("a b c", ["a", "b", "c"], None),
        ("0.3 a 0.7 b", ["a", "b"], (0.3, 0.7)),
        ([0.3, "a", 7, " b "], ["a", "b"], (0.3, 7.0)),
        (["30", "b"], ["b"], (30.0,)),
        (["30", "b", "c"], ["30", "b", "c"], None),
        ("1e-3 a 1 b", ["a", "b"], (1e-3, 1.0)),
    ],
)
def test_an_even_list_that_alternates_with_numbers_has_weights(
    words: str | list[str], prefixes: list[str], weights: tuple[float, ...] | None
) -> None:
    assert parse_blend(words) == (prefixes, weights)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("0.3 a b c", "b stands where a weight is expected"),
        ("a b 0.3 c", "a stands where a weight is expected"),
        ("-1 a 2 b", "must not be negative"),
        ("0 a 0 b", "not all of them 0"),
        ("inf a 1 b", "must not be negative"),
        (["a", ""], "a prefix is empty"),
        ([], "a prefix is empty"),
        (7, "a blend is a list or a string of prefixes, not int"),
    ],
)
def test_a_blend_that_cannot_be_meant_is_refused(words: object, fault: str) -> None:
    with pytest.raises(BlendError, match=fault):
        parse_blend(words)


def test_a_file_of_split_lists_has_three_keys(tmp_path: Path) -> None:
    file = tmp_path / "lists.json"
    file.write_text('{"train": ["a"], "valid": "b c", "test": null}')
    assert read_split_lists(str(file)) == {"train": ["a"], "valid": "b c", "test": None}
    file.write_text('{"train": ["a"]}')
    with pytest.raises(BlendError, match="keys train, valid and test"):
        read_split_lists(str(file))
    file.write_text("{")
    with pytest.raises(BlendError, match="is not JSON"):
        read_split_lists(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BlendError, match=r"nope\.txt cannot be read: No such file"):
        read_words(str(tmp_path / "nope.txt"))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "blend").write_bytes(b"caf\xe9")
    for read in (read_words, read_split_lists):
        with pytest.raises(BlendError, match=r"blend is not text in UTF-8: unexpected end of data at byte 3$"):
            read(str(tmp_path / "blend"))
