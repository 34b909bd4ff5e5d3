"""The grammar of `split`: up to three shares for train, validation and test."""

import re

__all__ = ["SPLITS", "split_shares"]

SPLITS = ("train", "valid", "test")

_SEPARATOR = re.compile(r"\s*[,/]\s*|\s+")
_SHARE = re.compile(r"\d+\.?\d*|\.\d+")
_MEANT = "a split is one to three shares for train, valid and test, for example 99,1,0"


def split_shares(text: str) -> tuple[float, float, float]:
    """Return the shares, which sum to 1 (`969, 30, 1`, `98/2`, `[0.7,0.2,0.1]`), missing ones are 0; or ValueError.

    Megatron-Core takes any digits out of any text, so that `-1` is 1 and `1e-1` is 1 and 1; here such a text is refused.
    """
    words = _SEPARATOR.split(re.sub(r"^\[(.*)\]$", r"\1", text.strip()).strip())
    wrong = next((word for word in words if not _SHARE.fullmatch(word)), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no share; {_MEANT}")
    numbers = [float(word) for word in words]
    if len(numbers) > len(SPLITS) or sum(numbers) == 0:
        raise ValueError(_MEANT)
    train, valid, test = (number / sum(numbers) for number in [*numbers, 0.0, 0.0][:3])
    return train, valid, test
