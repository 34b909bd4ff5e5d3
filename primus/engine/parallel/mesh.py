"""`Mesh`: this rank's groups, made once from a layout and passed to whoever communicates.

A group of one needs no process group, so serial code is parallel code with groups of one.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from primus.engine.config import DistConfig, GroupName, ParallelConfig
from primus.engine.parallel.communicator import Communicator, communicator_of
from primus.engine.parallel.layout import Axis, Coordinates, Grid, Layout
from primus.errors import ConfigError

__all__ = ["Group", "Mesh", "Part", "build_mesh", "single_mesh"]


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


@dataclass(frozen=True, slots=True)
class Part:
    """One of equal parts."""

    index: int
    size: int


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
    cp_exchange: Group
    """Neighbours in `cp` that exchange heads (`a2a+p2p`)."""
    cp_ring: Group
    """Ranks in `cp` that join such neighbourhoods."""
    dp: Group
    """Ranks that see other samples."""
    dp_cp: Group
    """Ranks that hold the same dense parameters and other tokens: gradients are reduced here."""
    intra_dp_cp: Group
    """Neighbours in `dp_cp` that divide one optimizer state; all of it with one instance."""
    inter_dp_cp: Group
    """Ranks in `dp_cp` that hold the same part of the instances' states."""
    pp: Group
    """Ranks that share the depth; messages from lower to higher of them."""
    pp_down: Group
    """The same ranks again: messages from higher to lower."""
    embd: Group
    """First and last of `pp`, on these two: they hold a tied embedding each."""
    mp: Group
    """Tensor x pipeline: ranks that together hold one copy of the dense parameters."""
    ep: Part
    """This rank's part of the experts."""
    etp: Part
    """Its part of their matrices."""
    etp_ep: Group
    """Ranks that hold one copy of a stage's experts: tokens are exchanged here."""
    expt_dp: Group
    """Ranks that hold the same parts of the same experts: their gradients are reduced here."""
    intra_expt_dp: Group
    """Neighbours in `expt_dp` that divide one optimizer state."""
    inter_expt_dp: Group
    """Ranks in `expt_dp` that hold the same part of the instances' states."""
    expt_mp: Group
    """Ranks that together hold one copy of the experts of all stages."""


def single_mesh(device: torch.device | str = "cpu") -> Mesh:
    """Return the mesh of a process that is alone."""
    return _single(Layout(world_size=1), torch.device(device))


def build_mesh(
    parallel: ParallelConfig, config: DistConfig, device: torch.device, *, agreed: Mapping[str, str] | None = None
) -> Mesh:
    """Join the launcher's world and make this rank's groups.

    `agreed` holds texts that must be the same on all ranks, by what they are. They are compared before groups are made: ranks
    with different layouts would wait for one another in vain. ConfigError on every rank names those that differ, and shows
    texts of one line.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    layout = Layout.of(parallel, world_size)
    if world_size == 1:
        return _single(layout, device)
    timeout = timedelta(minutes=config.timeout_minutes)
    if not dist.is_initialized():
        # Not bound to the device: torch would then run all messages of a group, to whomever, in one order.
        dist.init_process_group(config.backend if device.type == "cuda" else "gloo", timeout=timeout)
    _check_agreed(agreed or {})
    make = _Groups(layout, dist.get_rank(), config, device)
    pp, cp, dp_cp = make.axes("pp", "pp"), make.axes("cp", "cp"), make.axes("dp_cp", "dp", "cp")
    tp, mp = make.axes("tp", "tp"), make.axes("mp", "tp", "pp")
    near = parallel.hierarchical_context_parallel_sizes[0] if parallel.hierarchical_context_parallel_sizes else cp.size
    exchange, ring = make.levels("hcp", "hcp", cp, near)
    intra, inter = make.levels("intra_dp_cp", "inter_dp_cp", dp_cp, dp_cp.size // parallel.num_distributed_optimizer_instances)
    return Mesh(
        layout=layout,
        rank=make.rank,
        device=device,
        coordinates=layout.coordinates(make.rank),
        world=make.world,
        tp=tp,
        cp=cp,
        cp_exchange=exchange,
        cp_ring=ring,
        dp=make.axes("dp", "dp"),
        dp_cp=dp_cp,
        intra_dp_cp=intra,
        inter_dp_cp=inter,
        pp=pp,
        mp=mp,
        pp_down=make.second("pp", pp),
        embd=make.ends("embd", pp),
        **_expert_groups(make, tp, dp_cp, mp, parallel.num_distributed_optimizer_instances),
    )


def _single(layout: Layout, device: torch.device) -> Mesh:
    alone = Group((0,), 0)
    return Mesh(
        layout=layout,
        rank=0,
        device=device,
        coordinates=layout.coordinates(0),
        world=alone,
        tp=alone,
        cp=alone,
        cp_exchange=alone,
        cp_ring=alone,
        dp=alone,
        dp_cp=alone,
        intra_dp_cp=alone,
        inter_dp_cp=alone,
        pp=alone,
        pp_down=alone,
        embd=alone,
        mp=alone,
        ep=Part(0, 1),
        etp=Part(0, 1),
        etp_ep=alone,
        expt_dp=alone,
        intra_expt_dp=alone,
        inter_expt_dp=alone,
        expt_mp=alone,
    )


def _expert_groups(make: "_Groups", tp: Group, dp_cp: Group, mp: Group, instances: int) -> dict[str, Any]:
    """Return the groups of the expert grid, which are the dense ones given where they have the same ranks."""
    expt_dp = make.alike("expt_dp", dp_cp, "dp")
    # Instances that do not divide the copies of an expert are refused by a rule; nothing divides one without experts.
    intra, inter = make.levels("intra_expt_dp", "inter_expt_dp", expt_dp, max(1, expt_dp.size // instances))
    return {
        "ep": make.part("ep"),
        "etp": make.part("tp"),
        "etp_ep": make.alike("etp_ep", tp, "tp", "ep"),
        "expt_dp": expt_dp,
        "intra_expt_dp": intra,
        "inter_expt_dp": inter,
        "expt_mp": make.alike("expt_mp", mp, "tp", "ep", "pp"),
    }


class _Groups:
    """Makes this rank's groups; those of equal ranks that communicate alike are one.

    Members alone make a group: were all ranks to take part in all groups, thousands of ranks would wait for hours. Each axis
    cuts the world into groups of one size, so every rank makes one group for it, in one order of axes: torch's names agree.
    """

    def __init__(self, layout: Layout, rank: int, config: DistConfig, device: torch.device) -> None:
        self.rank, self.world = rank, Group(tuple(range(layout.world_size)), rank, dist.group.WORLD)
        self._layout, self._config, self._device = layout, config, device
        self._known = {(self.world.ranks, Communicator()): self.world}

    def axes(self, name: GroupName, *axes: Axis) -> Group:
        """Return the ranks that differ from this one in `axes` alone."""
        return self._group(name, self._ranks(axes, "dense"))

    def alike(self, name: GroupName, dense: Group, *axes: Axis) -> Group:
        """Return the ranks that differ in `axes` of the expert grid; `dense` if it has these and `name` no settings."""
        ranks = self._ranks(axes, "expert")
        has_settings = communicator_of(self._config, name, self._device).settings is not None
        return self._group(name, ranks) if has_settings or ranks != dense.ranks else dense

    def part(self, axis: Axis) -> Part:
        """Return this rank's place on an axis of the expert grid; nobody communicates along it."""
        ranks = self._ranks((axis,), "expert")
        return Part(ranks.index(self.rank), len(ranks))

    def levels(self, near_name: GroupName, far_name: GroupName, whole: Group, near: int) -> tuple[Group, Group]:
        """Cut a group into neighbourhoods of `near` ranks; return this rank's one, and the ranks of its place in all."""
        if near == whole.size and communicator_of(self._config, near_name, self._device).settings is None:
            return whole, Group((self.rank,), 0)
        first, place = whole.index // near * near, whole.index % near
        return self._group(near_name, whole.ranks[first : first + near]), self._group(far_name, whole.ranks[place::near])

    def second(self, name: GroupName, first: Group) -> Group:
        """Return another group of the same ranks."""
        return Group(first.ranks, first.index, self._handle(name, first.ranks) if first.size > 1 else None)

    def ends(self, name: GroupName, pp: Group) -> Group:
        """Return first and last rank; those between make a group too, be it of one, so that all ranks make equally many."""
        if pp.size <= 2:
            return self._group(name, pp.ranks)
        ranks = pp.ranks[:: pp.size - 1] if pp.index in (0, pp.size - 1) else pp.ranks[1:-1]
        return Group(ranks, ranks.index(self.rank), self._handle(name, ranks))

    def _ranks(self, axes: tuple[Axis, ...], grid: Grid) -> tuple[int, ...]:
        return next(ranks for ranks in self._layout.groups(*axes, grid=grid) if self.rank in ranks)

    def _group(self, name: GroupName, ranks: tuple[int, ...]) -> Group:
        if len(ranks) == 1:
            return Group(ranks, 0)
        key = ranks, communicator_of(self._config, name, self._device)
        if key not in self._known:
            self._known[key] = Group(ranks, ranks.index(self.rank), self._handle(name, ranks))
        return self._known[key]

    def _handle(self, name: GroupName, ranks: tuple[int, ...]) -> ProcessGroup:
        arguments = communicator_of(self._config, name, self._device).arguments(timedelta(minutes=self._config.timeout_minutes))
        handle: ProcessGroup = dist.new_group(list(ranks), use_local_synchronization=True, **arguments)
        return handle


def _check_agreed(texts: Mapping[str, str]) -> None:
    ranks: list[dict[str, str]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, {what: _in_short(text) for what, text in texts.items()})
    for what in texts:
        others = [rank for rank, shorts in enumerate(ranks) if shorts[what] != ranks[0][what]]
        if others:
            named = f"rank(s) {', '.join(map(str, others))} of {len(ranks)} have another {what} than rank 0"
            is_shown = "\n" not in texts[what]
            shown = f": {ranks[others[0]][what]} on rank {others[0]}, {ranks[0][what]} on rank 0" if is_shown else ""
            raise ConfigError(named + shown)


def _in_short(text: str) -> str:
    """Return a text of one line as it is, a longer one as a hash."""
    return hashlib.sha256(text.encode()).hexdigest() if "\n" in text else text
