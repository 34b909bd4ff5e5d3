"""The batch size as a function of consumed samples: batch ramp-up and rounding, in plain integers.

`BatchPlan` is the name to use. A ramp `(start, increment, ramp_samples)` grows the batch from `start` to
`global_batch_size` in equal stretches of samples (`rampup_batch_size`); resuming needs nothing but the sample counter.
"""

from dataclasses import dataclass

from primus.engine.config.train import TrainConfig

__all__ = ["BatchPlan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """Answers how large the batch is after any number of samples."""

    micro_batch_size: int
    global_batch_size: int
    data_parallel_size: int
    rampup: tuple[int, int, int] | None
    round_down: bool
    """Round to a multiple of micro batch x data parallel (`decrease_batch_size_if_needed`)."""

    @classmethod
    def of(cls, train: TrainConfig, data_parallel_size: int) -> "BatchPlan":
        """The plan of a run on `data_parallel_size` ranks."""
        return cls(
            micro_batch_size=train.micro_batch_size,
            global_batch_size=train.global_batch_size,
            data_parallel_size=data_parallel_size,
            rampup=train.rampup_batch_size,
            round_down=train.decrease_batch_size_if_needed,
        )

    @property
    def unit(self) -> int:
        """Samples of one microbatch over all data-parallel ranks."""
        return self.micro_batch_size * self.data_parallel_size

    def scheduled(self, consumed_samples: int) -> int:
        """Batch size that the configuration asks for after `consumed_samples`."""
        if self.rampup is None:
            return self.global_batch_size
        start, increment, ramp_samples = self.rampup
        increments = (self.global_batch_size - start) // increment
        if consumed_samples > ramp_samples or increments == 0:
            return self.global_batch_size
        samples_per_increment = ramp_samples / increments
        grown = increments if samples_per_increment == 0 else int(consumed_samples / samples_per_increment)
        return min(start + grown * increment, self.global_batch_size)

    def running(self, consumed_samples: int) -> int:
        """Batch size that is really trained: the scheduled one, rounded down if that is allowed."""
        size = self.scheduled(consumed_samples)
        return size // self.unit * self.unit if self.round_down else size

    def num_microbatches(self, consumed_samples: int) -> int:
        """Microbatches a data-parallel rank accumulates in the step after `consumed_samples`."""
        return self.running(consumed_samples) // self.unit

    def sizes(self) -> tuple[int, ...]:
        """Every batch size that the run will train with, smallest first."""
        if self.rampup is None:
            return (self.global_batch_size,)
        start, increment, _ = self.rampup
        return tuple(range(start, self.global_batch_size + 1, increment))

    def iterations_for(self, samples: int) -> int:
        """Iterations that `samples` last; a partial last batch is dropped."""
        consumed = iterations = 0
        if self.rampup is not None:
            while consumed <= self.rampup[2] and consumed <= samples:
                consumed += self.scheduled(consumed)
                iterations += 1
        return iterations + max(0, (samples - consumed) // self.global_batch_size)

    def samples_of(self, iterations: int) -> int:
        """Samples that the first `iterations` schedule, ramp included."""
        consumed = 0
        if self.rampup is None:
            return iterations * self.global_batch_size
        while iterations > 0 and consumed <= self.rampup[2]:
            consumed += self.scheduled(consumed)
            iterations -= 1
        return consumed + iterations * self.global_batch_size
