"""The grammar of blends and splits."""

from pathlib import Path

import pytest

from primus.backends.megatron.blends import BlendError, parse_blend, read_split_lists, read_words, split_shares


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


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("99,1,0", (0.99, 0.01, 0)),
        ("969, 30, 1", (0.969, 0.03, 0.001)),
        ("[0.7,0.2,0.1]", (0.7, 0.2, 0.1)),
        ("98/2", (0.98, 0.02, 0)),
        ("90", (1, 0, 0)),
    ],
)
def test_every_number_of_a_split_is_a_share(text: str, shares: tuple[float, float, float]) -> None:
    assert split_shares(text) == pytest.approx(shares, abs=1e-15)


@pytest.mark.parametrize("text", ["", "train", "1,2,3,4", "0,0", "1.2.3"])
def test_a_split_without_meaning_is_refused(text: str) -> None:
    with pytest.raises(BlendError):
        split_shares(text)


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
