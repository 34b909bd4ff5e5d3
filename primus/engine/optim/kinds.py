"""The elements that norms and counts go over, by the ranks that hold them between them: dense parameters, and experts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.optim.flat import FlatRange, Piece
from primus.engine.optim.norm import count_zeros, global_norm, sum_of_squares
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Group, Mesh

__all__ = ["Kind", "kinds_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """This rank's share of elements that one set of groups holds."""

    grads: Sequence[Tensor]
    copied_grads: Sequence[Tensor]
    """Of elements that another rank counts."""
    mains: Sequence[Tensor]
    num_elements: int
    """Without padding."""
    groups: tuple[Group, Group]
    """Who divides the state, and who divides the model."""
    stage_groups: tuple[Group, Group]
    """The same within a pipeline stage."""

    def squares(self, groups: tuple[Group, Group], device: torch.device) -> Tensor:
        """Return the sum of squares of the gradients over some groups, fp64."""
        return sum_of_squares(self.grads, groups, device, copies=self.copied_grads)

    def zeros(self, device: torch.device) -> int:
        """Return how many gradients are exactly zero."""
        return count_zeros(self.grads, self.num_elements, self.groups, device)

    def mains_norm(self, device: torch.device) -> float:
        """Return the norm of the main weights."""
        return global_norm(self.mains, self.groups, device)


def kinds_of(ranges: Sequence[FlatRange], buffers: DataParallel, mesh: Mesh) -> list[Kind]:
    """Return one kind where the same ranks share dense parameters and experts, else both, on all ranks alike."""
    dense = (buffers.shard_group, mesh.mp), (buffers.shard_group, mesh.tp)
    expert = (buffers.expert_shard_group, mesh.expt_mp), (buffers.expert_shard_group, mesh.etp_ep)
    if _ranks(dense) == _ranks(expert):
        return [_kind(ranges, (False, True), *dense)]
    return [_kind(ranges, (False,), *dense), _kind(ranges, (True,), *expert)]


def _ranks(groups: tuple[tuple[Group, Group], tuple[Group, Group]]) -> list[tuple[int, ...]]:
    return [group.ranks for pair in groups for group in pair]


def _kind(
    ranges: Sequence[FlatRange], are_experts: tuple[bool, ...], groups: tuple[Group, Group], stage_groups: tuple[Group, Group]
) -> Kind:
    own = [r for r in ranges if r.pieces and r.pieces[0].sharding.is_expert in are_experts]
    stretches = [(counts, r, span) for r in own for counts, span in r.stretches(_is_counted)]
    return Kind(
        grads=[r.grad[span] for counts, r, span in stretches if counts],
        copied_grads=[r.grad[span] for counts, r, span in stretches if not counts],
        mains=[r.main[span] for counts, r, span in stretches if counts],
        num_elements=sum(piece.num_counted for r in own for piece in r.pieces),
        groups=groups,
        stage_groups=stage_groups,
    )


def _is_counted(piece: Piece) -> bool:
    return piece.num_counted > 0
