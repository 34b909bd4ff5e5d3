"""The memory behind tensors: what it is known by, and which of it is no activation."""

from collections.abc import Sequence

from torch import Tensor

from primus.engine.model.gpt import GPTModel

__all__ = ["memory_of", "resident_memory"]


def memory_of(x: Tensor) -> int:
    """Return what a tensor's memory is known by as long as it exists.

    Not its address: sharded weights give theirs back after each use, and other tensors get it.
    """
    identity: int = x.untyped_storage()._cdata
    return identity


def resident_memory(chunks: Sequence[GPTModel]) -> set[int]:
    """Return the memory of weights and of position tables."""
    tables = [table for chunk in chunks if chunk.rotary is not None for table in chunk.rotary.tables]
    weights = [weight for chunk in chunks for weight in chunk.parameters()]
    return {memory_of(x) for x in (*weights, *tables)}
