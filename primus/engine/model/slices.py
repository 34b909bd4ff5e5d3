"""`SequenceSlice`: one of the slices of a sequence that pass a stage one after another (Seq1F1B, arXiv 2406.03488).

A slice attends to the keys and values of those before it, which are leaves of its own graph: slices run backward one by one,
the last first, and what the later ones left at its leaves is where a slice's backward starts besides its output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

__all__ = ["Root", "SequenceSlice"]

Root = tuple[GradientEdge, Tensor]
"""A place in a graph, and the gradient that enters there."""


@dataclass(slots=True)
class _Heads:
    """Keys or values of a slice."""

    leaf: Tensor
    """As later slices see them."""
    edge: GradientEdge | None
    """Where they stand in the slice's own graph; None without gradients."""


class SequenceSlice:
    """A slice on one chunk: what its attention made for later slices, by attention module."""

    def __init__(self, first: int, earlier: Sequence["SequenceSlice"] = ()) -> None:
        """`first` is the position of its first token in the sequence; `earlier` are all slices before it."""
        self.first = first
        self._earlier = tuple(earlier)
        self._made: dict[nn.Module, tuple[_Heads, ...]] = {}

    def extend(self, attention: nn.Module, key_SBGD: Tensor, value_SBGD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of all positions so far, this slice's last; a replay for the backward may ask again."""
        if attention not in self._made:
            self._made[attention] = _heads(key_SBGD), _heads(value_SBGD)
        before = [part._made[attention] for part in self._earlier]
        key, value = (
            torch.cat([*(heads[i].leaf for heads in before), own]) if before else own
            for i, own in enumerate((key_SBGD, value_SBGD))
        )
        return key, value

    def roots(self) -> list[Root]:
        """Return where this slice's backward starts besides its output. Once: the graph is let go."""
        roots = []
        for heads in (heads for pair in self._made.values() for heads in pair):
            if heads.edge is not None and heads.leaf.grad is not None:
                roots.append((heads.edge, heads.leaf.grad))
            heads.edge = None
        return roots


def _heads(x: Tensor) -> _Heads:
    edge = get_gradient_edge(x) if x.requires_grad else None
    return _Heads(x.detach().requires_grad_(x.requires_grad), edge)
