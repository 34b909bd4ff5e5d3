"""The grammar of splits."""

import re

import pytest

from primus.engine.config.split import split_shares


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("99,1,0", (0.99, 0.01, 0)),
        ("969, 30, 1", (0.969, 0.03, 0.001)),
        ("[0.7,0.2,0.1]", (0.7, 0.2, 0.1)),
        ("98/2", (0.98, 0.02, 0)),
        ("90", (1, 0, 0)),
        (" 949,50, 1 ", (0.949, 0.05, 0.001)),
        ("8 1 1", (0.8, 0.1, 0.1)),
        (".5,1.,0", (1 / 3, 2 / 3, 0)),
    ],
)
def test_every_number_of_a_split_is_a_share(text: str, shares: tuple[float, float, float]) -> None:
    assert split_shares(text) == pytest.approx(shares, abs=1e-15)


@pytest.mark.parametrize("text", ["1,2,3,4", "0,0", "0"])
def test_a_split_without_meaning_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a split is one to three shares for train, valid and test, for example 99,1,0$"):
        split_shares(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", ""),
        ("train", "train"),
        ("1.2.3", "1.2.3"),
        (".", "."),
        ("-5", "-5"),
        ("-1,1,1", "-1"),
        ("nan,1,1", "nan"),
        ("x99,1,0", "x99"),
        ("1;1;1", "1;1;1"),
        ("1e-1,1", "1e-1"),
        ("1,,1", ""),
        ("99,1,", ""),
    ],
)
def test_what_is_no_share_is_named(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(word))} is no share; a split is one to three shares"):
        split_shares(text)
