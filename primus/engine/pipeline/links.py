"""`Links`: the messages between one pipeline rank and the others.

A channel (one sender, one receiver) keeps order, so that a message is known by its place. Messages to higher and to lower ranks
travel in groups of their own: in one communicator of NCCL two ranks that send to each other first would wait for ever.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.parallel.collectives import gather_sequence, own_part
from primus.engine.parallel.mesh import Group, Mesh
from primus.engine.pipeline.schedules import Message

__all__ = ["Links"]


class _Channel:
    """What arrives from one rank."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.awaited = deque(messages)
        """Not asked for yet."""
        self.posted: deque[tuple[Message, list[tuple[Tensor, dist.Work]]]] = deque()
        """Under way: what comes ahead of the message, and the message."""
        self.arrived: dict[Message, Tensor] = {}
        self.num_posted = 0
        self.messages = tuple(messages)

    @property
    def num_received(self) -> int:
        """Messages that have arrived."""
        return self.num_posted - len(self.posted)

    def restart(self, num_sent: int) -> None:
        """Expect all messages anew; those that the sender sent before it began anew itself have been received."""
        assert self.num_received == num_sent, f"{self.num_received} of {num_sent} messages were taken"
        self.arrived.clear()
        self.awaited = deque(self.messages)
        # What was asked for beyond them will hold the first of the new messages.
        self.posted = deque((self.awaited.popleft(), parts) for _, parts in self.posted)
        self.num_posted = len(self.posted)


class Links:
    """Sends and receives hidden states and their gradients, all of one shape and dtype."""

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        posts_ahead: bool,
        scatters: bool = False,
        knocks: bool = False,
    ) -> None:
        """`posts_ahead` asks for a channel's next message while the present one is worked on.

        `scatters`: tensor-parallel ranks, who hold one and the same message, send a share each and gather it. `knocks`: one
        element goes ahead of each message, to wake the link.
        """
        self._mesh, self._dtype, self._posts_ahead = mesh, dtype, posts_ahead
        self._scatters, self._knocks = scatters and mesh.tp.size > 1 and shape[0] % mesh.tp.size == 0, knocks
        self._shape = (shape[0] // mesh.tp.size, *shape[1:]) if self._scatters else tuple(shape)
        self._channels: dict[int, _Channel] = {}
        self._sent: deque[tuple[Tensor, dist.Work]] = deque()

    def begin(self, incoming: Mapping[int, Sequence[Message]]) -> None:
        """Start a step that receives these messages, by pipeline rank of the sender, in the order of its sends."""
        self._channels = {source: _Channel(messages) for source, messages in incoming.items()}
        if self._posts_ahead:
            for source in self._channels:
                self._post(source)

    def restart(self, sent: Mapping[int, int]) -> None:
        """Start the step again; `sent` says how many messages each rank has sent to this one before it started again itself."""
        for source, channel in self._channels.items():
            number = sent.get(source, 0)
            while channel.num_received < number:
                self._receive(source)
            channel.restart(number)

    def take(self, message: Message, source: int) -> Tensor:
        """Return a message, waiting for it (and for those that its sender sends before it)."""
        channel = self._channels[source]
        while message not in channel.arrived:
            self._receive(source)
        arrived = channel.arrived.pop(message)
        return gather_sequence(arrived, self._mesh.tp) if self._scatters else arrived

    def give(self, x: Tensor, target: int) -> None:
        """Send to a pipeline rank; nobody waits."""
        group, index = self._group(self._mesh.pp.index, target), self._mesh.pp.ranks[target]
        share = own_part(x, self._mesh.tp) if self._scatters else x
        for part in ([share.new_zeros(1)] if self._knocks else []) + [share.contiguous()]:
            work = dist.isend(part, index, group=group.handle)
            assert work is not None, "this rank is in the group"
            self._sent.append((part, work))
        while self._sent and self._sent[0][1].is_completed():
            self._sent.popleft()

    def end(self) -> None:
        """Wait until everything has left."""
        while self._sent:
            self._sent.popleft()[1].wait()

    def _receive(self, source: int) -> None:
        channel = self._channels[source]
        if not channel.posted:
            self._post(source)
        label, parts = channel.posted.popleft()
        for _, work in parts:
            work.wait()
        channel.arrived[label] = parts[-1][0]
        if self._posts_ahead:
            self._post(source)

    def _post(self, source: int) -> None:
        channel = self._channels[source]
        if channel.awaited:
            channel.num_posted += 1
            group, index = self._group(source, self._mesh.pp.index), self._mesh.pp.ranks[source]
            parts = []
            for shape in ([(1,)] if self._knocks else []) + [self._shape]:
                buffer = torch.empty(shape, dtype=self._dtype, device=self._mesh.device)
                work = dist.irecv(buffer, index, group=group.handle)
                assert work is not None, "this rank is in the group"
                parts.append((buffer, work))
            channel.posted.append((channel.awaited.popleft(), parts))

    def _group(self, source: int, target: int) -> Group:
        return self._mesh.pp if source < target else self._mesh.pp_down
