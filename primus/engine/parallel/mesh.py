"""`Mesh`: this rank's groups, made once from a layout and passed to whoever communicates.

A group of one needs no process group, so serial code is parallel code with groups of one.
"""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from primus.engine.config import DistConfig, ParallelConfig
from primus.engine.parallel.layout import Axis, Coordinates, Layout

__all__ = ["Group", "Mesh", "build_mesh", "layout_of", "single_mesh"]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Ranks that communicate, and this rank's place among them."""

    ranks: tuple[int, ...]
    """Global ranks, ascending."""
    index: int
    """Place of this rank in `ranks`."""
    handle: ProcessGroup | None = None
    """None for a group of one."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mesh:
    """Everything that depends on the rank."""

    layout: Layout
    rank: int
    device: torch.device
    coordinates: Coordinates
    world: Group
    tp: Group
    """Ranks that share matrices."""
    cp: Group
    """Ranks that share a sequence."""
    dp: Group
    """Ranks that see other samples."""
    dp_cp: Group
    """Ranks that hold the same dense parameters and other tokens: gradients are reduced here."""
    pp: Group
    """Ranks that share the depth."""
    mp: Group
    """Tensor x pipeline: ranks that together hold one copy of the model."""


def layout_of(parallel: ParallelConfig, world_size: int) -> Layout:
    """Return the layout of a configuration on `world_size` ranks; ConfigError if it does not fit."""
    return Layout(
        world_size=world_size,
        tensor=parallel.tensor_model_parallel_size,
        context=parallel.context_parallel_size,
        pipeline=parallel.pipeline_model_parallel_size,
        expert=parallel.expert_model_parallel_size,
        use_tp_pp_dp_mapping=parallel.use_tp_pp_dp_mapping,
    )


def single_mesh(device: torch.device | str = "cpu") -> Mesh:
    """Return the mesh of a process that is alone."""
    alone = Group((0,), 0)
    layout = Layout(world_size=1)
    return Mesh(
        layout=layout,
        rank=0,
        device=torch.device(device),
        coordinates=layout.coordinates(0),
        world=alone,
        tp=alone,
        cp=alone,
        dp=alone,
        dp_cp=alone,
        pp=alone,
        mp=alone,
    )


def build_mesh(parallel: ParallelConfig, config: DistConfig, device: torch.device) -> Mesh:
    """Join the launcher's world and make this rank's groups; every rank makes all groups in one order."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    layout = layout_of(parallel, world_size)
    if world_size > 1 and not dist.is_initialized():
        backend = config.backend if device.type == "cuda" else "gloo"
        bound = device if device.type == "cuda" else None
        dist.init_process_group(backend, timeout=timedelta(minutes=config.timeout_minutes), device_id=bound)
    rank = dist.get_rank() if world_size > 1 else 0

    def group(*axes: Axis) -> Group:
        mine = Group((rank,), 0)
        for ranks in layout.groups(*axes):
            handle = dist.new_group(list(ranks)) if len(ranks) > 1 else None
            if rank in ranks:
                mine = Group(ranks, ranks.index(rank), handle)
        return mine

    everyone = tuple(range(world_size))
    return Mesh(
        layout=layout,
        rank=rank,
        device=device,
        coordinates=layout.coordinates(rank),
        world=Group(everyone, rank, dist.group.WORLD if world_size > 1 else None),
        tp=group("tp"),
        cp=group("cp"),
        dp=group("dp"),
        dp_cp=group("dp", "cp"),
        pp=group("pp"),
        mp=group("tp", "pp"),
    )
