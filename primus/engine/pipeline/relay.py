"""`Relay`: a sum over pipeline ranks for which nobody stops: partial sums go up, and the whole comes down when it is asked for.

rank 0   a ------> pass on            whole <-- learn
rank 1        a+b ------> pass on     whole <-- learn, tell rank 0
rank 2             a+b+c = whole ---> tell rank 1
"""

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.parallel.mesh import Group, Mesh

__all__ = ["Relay"]


class Relay:
    """One sum at a time; sums are in the order of the ranks, so that all replicas get the same."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._sent: list[tuple[Tensor, dist.Work]] = []
        self._whole: Tensor | None = None
        self._arriving: dist.Work | None = None

    def add(self, own: Tensor) -> Tensor:
        """Return the sum over this rank and those before it. Called between steps: messages keep the order of their asking."""
        assert self._whole is None, "the sum before was not asked for"
        for _, work in self._sent:
            work.wait()
        self._sent.clear()
        up, down = self._mesh.pp, self._mesh.pp_down
        total = own
        if up.index > 0:
            before = torch.empty_like(own)
            _receive(before, up, up.index - 1).wait()
            total = before + own
        if up.index < up.size - 1:
            self._send(total, up, up.index + 1)
            self._whole = torch.empty_like(own)
            # Asked for here: the next step asks for its own messages from that rank before the sum is needed.
            self._arriving = _receive(self._whole, down, down.index + 1)
        else:
            self._whole = total
            self._tell()
        return total

    def whole(self) -> Tensor:
        """Return the sum over all ranks, and tell the rank before; waits for the rank behind."""
        assert self._whole is not None, "there is no sum"
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None
            self._tell()
        whole, self._whole = self._whole, None
        return whole

    def _tell(self) -> None:
        assert self._whole is not None
        if self._mesh.pp_down.index > 0:
            self._send(self._whole, self._mesh.pp_down, self._mesh.pp_down.index - 1)

    def _send(self, x: Tensor, group: Group, target: int) -> None:
        work = dist.isend(x, group.ranks[target], group=group.handle)
        assert work is not None, "this rank is in the group"
        self._sent.append((x, work))


def _receive(x: Tensor, group: Group, source: int) -> dist.Work:
    work = dist.irecv(x, group.ranks[source], group=group.handle)
    assert work is not None, "this rank is in the group"
    return work
