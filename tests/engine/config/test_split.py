"""The grammar of splits."""

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
    ],
)
def test_every_number_of_a_split_is_a_share(text: str, shares: tuple[float, float, float]) -> None:
    assert split_shares(text) == pytest.approx(shares, abs=1e-15)


@pytest.mark.parametrize("text", ["", "train", "1,2,3,4", "0,0", "1.2.3", "-1,2,3"])
def test_a_split_without_meaning_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"share|float"):
        split_shares(text)
