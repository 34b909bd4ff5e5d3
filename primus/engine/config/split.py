"""The grammar of `split`: up to three shares for train, validation and test."""

import re

__all__ = ["SPLITS", "split_shares"]

SPLITS = ("train", "valid", "test")


def split_shares(text: str) -> tuple[float, float, float]:
    """Return the shares, which sum to 1 (`969, 30, 1`): every number in the text counts, missing ones are 0; or ValueError."""
    if "-" in text:
        raise ValueError("a share is not negative; shares are separated by commas, for example 99,1,0")
    numbers = [float(number) for number in re.findall(r"[.0-9]+", text)]
    if not 1 <= len(numbers) <= len(SPLITS) or sum(numbers) <= 0:
        raise ValueError("a split is one to three shares for train, valid and test, for example 99,1,0")
    train, valid, test = (number / sum(numbers) for number in [*numbers, 0.0, 0.0][:3])
    return train, valid, test
