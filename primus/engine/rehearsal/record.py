"""What a rehearsal finds out about one rank, as plain data; `to_json` and `from_json` carry it from process to process."""

import json
from dataclasses import dataclass

from primus.engine.config import serialize

__all__ = ["Collective", "Group", "Memory", "ParameterKind", "Record", "from_json", "to_json"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that this one communicates with."""

    axis: str
    """What they divide; several names where the same ranks meet for several purposes."""
    ranks: tuple[int, ...]
    index: int
    """Place of this rank among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterKind:
    """Parameters that differ in the number of their layer only."""

    name: str
    """With `*` for the number."""
    count: int
    local: tuple[int, ...]
    """Shape on this rank."""
    whole: tuple[int, ...]
    """Shape of the undivided tensor, rows that pad the vocabulary among them."""
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on this rank."""

    weights: int
    gradients: int
    main_weights: int
    """Wider copies that the optimizer updates."""
    optimizer_state: int
    other: int
    """Tables of positions and the like."""
    activations: int
    """The most that forwards and backwards hold at any moment of a step, beside what is held for good."""
    update: int
    """The most that reducing the gradients and updating the weights hold beside it."""

    @property
    def held(self) -> int:
        """Return what stays from step to step."""
        return self.weights + self.gradients + self.main_weights + self.optimizer_state + self.other

    @property
    def peak(self) -> int:
        """Return the most of a step."""
        return self.held + max(self.activations, self.update)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """Calls of one kind in one step."""

    axis: str
    """Name of the group."""
    size: int
    """Ranks in the group."""
    phase: str
    """What the rank is doing."""
    kind: str
    count: int
    num_bytes: int
    """Size of all tensors that the calls are about: gathered, summed, exchanged or sent."""
    sent_bytes: int
    """What leaves this rank, if collectives go round rings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One rank."""

    rank: int
    world_size: int
    groups: tuple[Group, ...]
    parameters: tuple[ParameterKind, ...]
    num_parameters: int
    """On this rank, tied ones once."""
    memory: Memory
    algorithm: str
    """Of the pipeline schedule."""
    num_microbatches: int
    """Of a step."""
    num_alive: float
    """Microbatches whose activations this rank holds at most."""
    collectives: tuple[Collective, ...]
    seconds: float
    """That the rehearsal took."""
    resident_bytes: int
    """The most memory that it took itself."""


def to_json(record: Record) -> str:
    """Return a record as one line."""
    return json.dumps(serialize.to_dict(record))


def from_json(text: str) -> Record:
    """Return the record that `to_json` wrote; ConfigError if the text is none."""
    record: Record = serialize.from_dict(json.loads(text), Record)
    return record
