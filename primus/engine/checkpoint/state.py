"""`TrainState`: the counters of a run. With weights, optimizer and random states it is everything that resuming needs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["TrainState"]


@dataclass(slots=True)
class TrainState:
    """Where the run stands. Position in the data, batch size and schedule are functions of these counters."""

    iteration: int = 0
    """Finished iterations."""
    consumed_train_samples: int = 0
    skipped_train_samples: int = 0
    """Samples that were drawn or due and not trained on."""
    consumed_valid_samples: int = 0
    num_floating_point_operations_so_far: float = 0.0

    def advance(self, *, samples: int, skipped_samples: int) -> None:
        """Count a finished iteration."""
        self.iteration += 1
        self.consumed_train_samples += samples
        self.skipped_train_samples += skipped_samples

    def to_dict(self) -> dict[str, Any]:
        """Return the counters by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TrainState":
        """Return saved counters; names of other versions are left out."""
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})
