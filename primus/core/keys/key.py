"""`Key`: a configuration key as one row of data. Defaults stand in the presets, never here."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Key"]

Status = Literal["live", "pending", "inert", "removed"]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a front door."""

    name: str
    """The flat key."""
    type: str
    """Type in the language of `types.py`."""
    choices: tuple[str | int, ...]
    """The allowed values; empty: any value of the type."""
    status: Status
    """`live` acts; `pending` stops the run unless it has the presets' value; `inert` warns; `removed` stops the run."""
    target: str | None
    """Dotted paths in the container that it decides, separated by commas."""
    doc: str
    """What it means, in one or two sentences."""
    reason: str = ""
    """Why it is pending or inert; the whole message of a removed key."""
    section: str = ""
    """Chapter of the reference page."""
    minimum: float | None = None
    """Least number allowed."""
    maximum: float | None = None
    """Largest number allowed."""
    above: float | None = None
    """Numbers are greater than it."""
    below: float | None = None
    """Numbers are less than it."""
    aka: tuple[str, ...] = ()
    """What other programs call it; a user who writes that is told the name."""

    @property
    def bounds(self) -> list[str]:
        """The range of its numbers in words."""
        named = (("at least", self.minimum), ("above", self.above), ("at most", self.maximum), ("below", self.below))
        return [f"{word} {bound:g}" for word, bound in named if bound is not None]

    def holds(self, number: float) -> bool:
        """Tell whether a number lies in the range."""
        return (
            (self.minimum is None or number >= self.minimum)
            and (self.above is None or number > self.above)
            and (self.maximum is None or number <= self.maximum)
            and (self.below is None or number < self.below)
        )
