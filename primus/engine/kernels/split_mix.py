"""SplitMix64 (Steele, Lea and Flood 2014, doi 10.1145/2660193.2660195): any number of it can be had without those before.

The i-th number of a seed is `mixed(seed + i STEP)`. torch has 64 bits with a sign only, whose sums and products wrap alike.
"""

from torch import Tensor

__all__ = ["STEP", "is_kept", "mixed", "signed"]

_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(state: Tensor) -> Tensor:
    """Return the numbers of states, int64, in place."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state.bitwise_xor_(_shifted(state, shift)).mul_(signed(factor))
    return state.bitwise_xor_(_shifted(state, 31))


def is_kept(numbers: Tensor, probability: float) -> Tensor:
    """Tell which numbers stand for what is not dropped."""
    return numbers >= int(probability * 2**64) - 2**63


def signed(value: int) -> int:
    """Return the number of the same 64 bits, the first of which is a sign."""
    return (value + 2**63) % 2**64 - 2**63


def _shifted(x: Tensor, count: int) -> Tensor:
    """Shift right without copies of the sign."""
    return (x >> count).bitwise_and_((1 << (64 - count)) - 1)


STEP = signed(0x9E3779B97F4A7C15)
"""Between the states of one number and the next."""
