"""`ReplicaCheck` compares the weights of data-parallel replicas, which must be equal to the bit."""

import hashlib
from collections.abc import Iterable

import torch
from torch import nn

from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Group, Mesh
from primus.engine.parallel.sharding import global_parameters, sharding_of
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome
from primus.errors import RunError

__all__ = ["ReplicaCheck"]


class ReplicaCheck(Callback):
    """Hashes every weight (SHA-1 of its bytes) each `interval` iterations; a difference ends the run on all ranks."""

    def __init__(self, interval: int, chunks: Iterable[nn.Module], buffers: DataParallel, mesh: Mesh) -> None:
        self._interval, self._buffers, self._mesh = interval, buffers, mesh
        self._parameters = dict(global_parameters(chunks))

    def can_wait(self, loop: Loop) -> bool:
        return loop.state.iteration % self._interval != 0

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        if not self.can_wait(loop):
            self._buffers.finish_param_gather()
            self._compare(loop.state.iteration)

    def _compare(self, iteration: int) -> None:
        # Experts have other replicas than the rest.
        kinds = ((False, self._mesh.dp_cp), (True, self._mesh.expt_dp))
        sentence = " and ".join(filter(None, [self._difference(are_experts, group) for are_experts, group in kinds]))
        # Other replicas may be sound, but the run ends for all of them.
        found = [line for line in all_gather_object(sentence, self._mesh.world) if line]
        if found:
            raise RunError(f"weights differ between data-parallel replicas after iteration {iteration}: {found[0]}")

    def _difference(self, are_experts: bool, group: Group) -> str:
        """Return which weights of a kind differ between the ranks that hold them, and on whom; empty if none do."""
        parameters = self._parameters.items()
        mine = {name: _digest(p) for name, p in parameters if sharding_of(p).is_expert == are_experts}
        replicas = all_gather_object(mine, group)
        unlike = [name for name in mine if any(replica[name] != replicas[0][name] for replica in replicas)]
        if not unlike:
            return ""
        ranks = [
            str(rank)
            for rank, replica in zip(group.ranks, replicas, strict=True)
            if any(replica[name] != replicas[0][name] for name in unlike)
        ]
        shown = ", ".join(unlike[:5]) + (f" and {len(unlike) - 5} more" if len(unlike) > 5 else "")
        return f"{shown} on rank(s) {', '.join(ranks)} and on rank {group.ranks[0]}"


def _digest(parameter: torch.Tensor) -> str:
    data = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha1(data.numpy().tobytes(), usedforsecurity=False).hexdigest()
