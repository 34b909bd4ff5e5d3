"""`TokenNumbers`: by what experts that drop values know a token, whichever rank it comes to."""

import torch
from torch import Tensor

from primus.engine.kernels.split_mix import STEP, mixed
from primus.engine.model.parameter import Place
from primus.engine.parallel.context import positions

__all__ = ["TokenNumbers"]


class TokenNumbers:
    """Draws a number for each token from the sample that it is of, counted from the run's first, and its place there.

    So no layout changes it, nor how a batch is cut into microbatches. Samples are counted as documents are dealt: rank r has
    those from r B on of a microbatch. Rows of fine-tuning are dealt in turn: where B and the data-parallel size are above 1
    theirs are other numbers, drawn alike. A layer has its own numbers by `name` and `seed`.
    """

    def __init__(self, place: Place, *, name: str, seed: int) -> None:
        self._streams, self._name, self._seed = place.streams, name, seed
        self._dp, self._cp = place.dp, place.cp
        self._divides = place.tp if place.sequence_parallel else None

    def __call__(self, x_SBH: Tensor) -> Tensor:
        """Return [S B], int64, for the tokens of this rank's next microbatch."""
        B = x_SBH.shape[1]
        first = (self._streams.count(self._name) * self._dp.size + self._dp.index) * B
        samples_B = torch.arange(first + 1, first + B + 1, device=x_SBH.device)
        places_S = self._places(len(x_SBH)).to(x_SBH.device) + 1
        seeds_B = mixed(samples_B * STEP + self._seed)
        return mixed(places_S.unsqueeze(1) * STEP + seeds_B).flatten()

    def _places(self, length: int) -> Tensor:
        """Return the places in the whole sequences of this rank's `length` ones."""
        tp = self._divides
        held = length if tp is None else length * tp.size
        cp = self._cp
        places = positions(held * cp.size, cp.size, cp.index) if cp.size > 1 else torch.arange(held)
        return places if tp is None else places.chunk(tp.size)[tp.index]
