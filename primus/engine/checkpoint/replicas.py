"""Copies of local parts on other ranks, so that the loss of a node loses nothing.

Ranks that lie J apart keep one another's parts, F of them together: with J = 8 and F = 2 ranks 0 and 8, 1 and 9, ... Whoever
restores a part takes it from the rank that wrote it, or from one that keeps a copy.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.checkpoint.files import ItemFile, Record, map_file
from primus.engine.checkpoint.local_folder import part_file
from primus.engine.parallel.mesh import Mesh

__all__ = ["exchange_parts", "keepers", "receive", "send"]

_PIECE = 64 * 2**20
"""Bytes of a part that are in flight and on the device at once."""


def keepers(rank: int, *, jump: int, factor: int) -> tuple[int, ...]:
    """Return the ranks that keep the part of `rank`, itself among them, ascending."""
    first = rank // (jump * factor) * (jump * factor) + rank % jump
    return tuple(range(first, first + jump * factor, jump))


def exchange_parts(folder: Path, ranks: Sequence[int], mesh: Mesh) -> list[Record]:
    """Write copies of the others' parts beside this rank's own; OSError only after all have come.

    Each rank in turn sends its part to the others. One that cannot write goes on receiving, or the others would wait for it.
    """
    records, failures = list[Record](), list[OSError]()
    for sender in ranks:
        path = folder / part_file(sender)
        if sender == mesh.rank:
            _send_part(map_file(path), [rank for rank in ranks if rank != sender], mesh)
            continue
        pieces = _pieces_of_part(sender, mesh)
        try:
            records.append(_write(path, pieces))
        except OSError as error:
            failures.append(error)
            deque(pieces, maxlen=0)
    if failures:
        raise failures[0]
    return records


def send(x: Tensor, rank: int, mesh: Mesh) -> None:
    """Send any tensor."""
    if x.numel():
        dist.send(_raw(x).to(mesh.device), dst=rank, group=mesh.world.handle)


def receive(x: Tensor, rank: int, mesh: Mesh) -> None:
    """Fill a contiguous CPU tensor with what `send` sends."""
    if x.numel():
        arrived = _raw(x) if mesh.device.type == "cpu" else torch.empty_like(_raw(x), device=mesh.device)
        dist.recv(arrived, src=rank, group=mesh.world.handle)
        _raw(x).copy_(arrived)


def _send_part(data: memoryview, others: Sequence[int], mesh: Mesh) -> None:
    size = torch.tensor(len(data))
    for rank in others:
        send(size, rank, mesh)
    for start in range(0, len(data), _PIECE):
        piece = torch.frombuffer(data[start : start + _PIECE], dtype=torch.uint8)
        for rank in others:
            send(piece, rank, mesh)


def _pieces_of_part(sender: int, mesh: Mesh) -> Iterator[Tensor]:
    size = torch.tensor(0)
    receive(size, sender, mesh)
    for start in range(0, int(size), _PIECE):
        piece = torch.empty(min(_PIECE, int(size) - start), dtype=torch.uint8)
        receive(piece, sender, mesh)
        yield piece


def _write(path: Path, pieces: Iterator[Tensor]) -> Record:
    file = ItemFile(path)
    try:
        with file.item():
            for piece in pieces:
                file.write(piece.numpy())
        return file.close()
    except OSError:
        file.abandon()
        raise


def _raw(x: Tensor) -> Tensor:
    """Bytes travel in any dtype and backend alike."""
    return x.reshape(-1).view(torch.uint8)
