"""Sizes and rank lists as people read them."""

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["scaled", "size", "spans"]


def size(num_bytes: int) -> str:
    """Return three digits of a size in bytes, and its unit."""
    return scaled(num_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def scaled(amount: float, base: int, units: Sequence[str]) -> str:
    """Return three digits and the unit that suits them."""
    power = 0
    while amount >= base and power < len(units) - 1:
        amount, power = amount / base, power + 1
    return f"{amount:.3g} {units[power]}" if amount < 1000 else f"{amount:.0f} {units[power]}"


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as spans, evenly spaced ones with their distance: `0-3, 8-11` or `0-896 by 128`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    steps = {b - a for a, b in pairwise(numbers)}
    if len(numbers) > 2 and len(steps) == 1 and len(found) > 1:
        return f"{numbers[0]}-{numbers[-1]} by {steps.pop()}"
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
