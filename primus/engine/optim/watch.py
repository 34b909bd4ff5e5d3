"""Watchdogs over losses and gradients.

`SpikeWatch` is the spike rule of Megatron-Core: it learns the largest magnitude of the first 100 observations of a context and
from then on reports what is ten times as large. The threshold is frozen after that: a run that starts to diverge must not
raise its own bar. NaN and Inf are not its business. `GradientWatch` looks at each rank's own gradients before they are
mixed with the others', so that a bad one can be traced to its rank.
"""

import logging
import math
from dataclasses import dataclass

from torch import Tensor

from primus.engine.optim.norm import global_norm
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Mesh

__all__ = ["GradientWatch", "SpikeWatch"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    count: int = 0
    largest: float = 0.0


class SpikeWatch:
    """One threshold a context (`loss`, `grads`); local to its rank."""

    def __init__(self, *, factor: float = 10.0, num_samples: int = 100) -> None:
        self.factor, self.num_samples = factor, num_samples
        self._seen: dict[str, _Seen] = {}

    def check(self, context: str, value: float, where: str = "") -> bool:
        """Return whether the value is unexpectedly large, and warn if so; `where` completes the warning."""
        if not math.isfinite(value):
            return False
        seen = self._seen.setdefault(context, _Seen())
        if seen.count < self.num_samples:
            seen.count += 1
            seen.largest = max(seen.largest, abs(value))
            if seen.count == self.num_samples:
                log.info("Max value for %s: %g", context, seen.largest)
            return False
        is_spike = abs(value) >= self.factor * seen.largest
        if is_spike:
            log.warning(
                "unexpectedly large %s %g%s: at least %g times %g, the largest of the first %d",
                *(context, value, f" ({where})" if where else "", self.factor, seen.largest, self.num_samples),
            )
        return is_spike


class GradientWatch:
    """Local norms of gradient buckets right before their reduction."""

    def __init__(self, buffers: DataParallel, mesh: Mesh, *, check_finite: bool, spikes: SpikeWatch | None = None) -> None:
        """Watch `buffers`; with `spikes`, warn at large norms (context `grads`, all buckets under one threshold)."""
        self._buffers, self._mesh, self._spikes = buffers, mesh, spikes
        self._bad: set[int] = set()
        # A rank that reduces with nobody keeps its own gradients: they can still be looked at when something is wrong.
        self._is_looking = spikes is not None or (check_finite and mesh.dp_cp.size > 1)
        if self._is_looking:
            buffers.watch(self._look)

    def begin(self) -> None:
        """Start a step."""
        self._bad.clear()

    def origin(self) -> str:
        """Return which ranks' own gradients are not finite in this step. All ranks call it together."""
        if not self._is_looking:
            for bucket, owned in enumerate(self._buffers.ranges()):
                self._look(bucket, owned.grad)
        found = all_gather_object(sorted(self._bad), self._mesh.world)
        places = [
            f"rank {rank} ({'bucket' if len(bad) == 1 else 'buckets'} {', '.join(map(str, bad))})"
            for rank, bad in enumerate(found)
            if bad
        ]
        return "on " + ", ".join(places) if places else "in the reduction over ranks; every rank's own gradients are finite"

    def _look(self, bucket: int, grad: Tensor) -> None:
        norm = global_norm([grad], (), self._mesh.device)
        if not math.isfinite(norm):
            self._bad.add(bucket)
        elif self._spikes:
            self._spikes.check("grads", norm, f"bucket {bucket}, rank {self._mesh.rank}")
