"""`Layout`: which rank stands where, and who shares a group with whom, in plain integers.

A rank is a mixed-radix number whose leftmost axis varies fastest: `tp-cp-ep-dp-pp`, or `tp-cp-ep-pp-dp` with
`use_tp_pp_dp_mapping`. Two grids lie over the same world: the dense one (no `ep`) and the expert one (no `cp`, its own `tp`).
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from primus.engine.config import ParallelConfig
from primus.errors import ConfigError

__all__ = ["Axis", "Coordinates", "Grid", "Layout"]

Axis = Literal["tp", "cp", "ep", "dp", "pp"]
Grid = Literal["dense", "expert"]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Place of a rank on the dense grid."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of parallelism laid over `world_size` ranks; data parallelism takes what they leave."""

    world_size: int
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    expert_tensor: int | None = None
    """None: as `tensor`."""
    use_tp_pp_dp_mapping: bool = False

    def __post_init__(self) -> None:
        degrees = (self.world_size, self.tensor, self.context, self.pipeline, self.expert, self._expert_tensor)
        if min(degrees) < 1:
            raise ConfigError(
                f"world size {self.world_size}, tensor {self.tensor}, context {self.context}, pipeline {self.pipeline}, expert "
                f"{self.expert}, expert tensor {self._expert_tensor}: each of these numbers must be at least 1"
            )
        dense, expert = "tensor x context x pipeline", "expert tensor x expert x pipeline"
        for name, unit in ((dense, self._dense_unit), (expert, self._expert_unit)):
            if self.world_size % unit:
                fitting = {max(1, self.world_size // unit) * unit, (self.world_size // unit + 1) * unit}
                raise ConfigError(
                    f"{self.world_size} processes cannot be divided into groups of {unit} ({name} parallel size); "
                    f"use {' or '.join(map(str, sorted(fitting)))} processes (--nproc-per-node, or --world-size for a plan)"
                )
        if self.use_tp_pp_dp_mapping and self.pipeline > 1 and self.expert > 1 and self._expert_unit != self._dense_unit:
            raise ConfigError(
                f"use_tp_pp_dp_mapping with {self.pipeline} pipeline stages: expert tensor {self._expert_tensor} x expert "
                f"{self.expert} must be tensor {self.tensor} x context {self.context}, or the stages of experts and of dense "
                "parameters lie on different ranks; choose such sizes or set use_tp_pp_dp_mapping: false"
            )

    @classmethod
    def of(cls, parallel: ParallelConfig, world_size: int) -> "Layout":
        """Return the layout of a configuration on `world_size` ranks; ConfigError if it does not fit."""
        return cls(
            world_size=world_size,
            tensor=parallel.tensor_model_parallel_size,
            context=parallel.context_parallel_size,
            pipeline=parallel.pipeline_model_parallel_size,
            expert=parallel.expert_model_parallel_size,
            expert_tensor=parallel.expert_tensor_parallel_size,
            use_tp_pp_dp_mapping=parallel.use_tp_pp_dp_mapping,
        )

    @property
    def data(self) -> int:
        """Data-parallel size of dense parameters: ranks that see other samples."""
        return self.world_size // self._dense_unit

    @property
    def order(self) -> tuple[Axis, ...]:
        """Axes, fastest first."""
        return ("tp", "cp", "ep", "pp", "dp") if self.use_tp_pp_dp_mapping else ("tp", "cp", "ep", "dp", "pp")

    def sizes(self, grid: Grid = "dense") -> dict[Axis, int]:
        """Return the size of every axis of a grid."""
        if grid == "dense":
            return {"tp": self.tensor, "cp": self.context, "ep": 1, "dp": self.data, "pp": self.pipeline}
        data = self.world_size // self._expert_unit
        return {"tp": self._expert_tensor, "cp": 1, "ep": self.expert, "dp": data, "pp": self.pipeline}

    def coordinates(self, rank: int) -> Coordinates:
        """Return where `rank` stands on the dense grid."""
        place: dict[Axis, int] = {}
        sizes = self.sizes()
        for axis in self.order:
            rank, place[axis] = divmod(rank, sizes[axis])
        return Coordinates(tp=place["tp"], cp=place["cp"], dp=place["dp"], pp=place["pp"])

    def groups(self, *axes: Axis, grid: Grid = "dense") -> tuple[tuple[int, ...], ...]:
        """Return the ascending rank lists that differ in `axes` only, the world cut into them."""
        sizes, strides = self.sizes(grid), self._strides(grid)
        inner = _offsets([(sizes[a], strides[a]) for a in self.order if a in axes])
        outer = _offsets([(sizes[a], strides[a]) for a in self.order if a not in axes])
        return tuple(tuple(base + offset for offset in inner) for base in outer)

    @property
    def _expert_tensor(self) -> int:
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    def _strides(self, grid: Grid) -> dict[Axis, int]:
        sizes, stride, strides = self.sizes(grid), 1, dict[Axis, int]()
        for axis in self.order:
            strides[axis] = stride
            stride *= sizes[axis]
        return strides

    @property
    def _dense_unit(self) -> int:
        return math.prod((self.tensor, self.context, self.pipeline))

    @property
    def _expert_unit(self) -> int:
        return math.prod((self._expert_tensor, self.expert, self.pipeline))


def _offsets(axes: list[tuple[int, int]]) -> list[int]:
    """Run axes of (size, stride), the first fastest."""
    digits = [range(0, size * stride, stride) for size, stride in reversed(axes)]
    return [sum(parts) for parts in itertools.product(*digits)]
