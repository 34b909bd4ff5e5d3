"""`Segments`: samples that lie one behind another in a sequence and do not see one another.

Attention goes from sample to sample, so that nothing is computed between two of them and no mask is held; windows, chunks and
positions count from each one's start.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from primus.engine.kernels.varied_attention import ScoreRule

__all__ = ["Mask", "Segments", "sample_by_sample"]


class Segments:
    """Where the samples of a sequence of S tokens end."""

    def __init__(self, bounds: Sequence[int], device: torch.device) -> None:
        """`bounds`: 0, then the end of each sample, the last S, on the host."""
        assert bounds[0] == 0, f"packed samples start at 0, not at {bounds[0]}"
        self.bounds = tuple(bounds)
        lengths = torch.tensor([stop - start for start, stop in self._samples()])
        starts = torch.tensor(self.bounds[:-1])
        self.sample = torch.arange(len(lengths)).repeat_interleave(lengths).to(device)
        """Number of each token's sample, [S]."""
        self.position = (torch.arange(self.bounds[-1]) - starts.repeat_interleave(lengths)).to(device)
        """Position of each token in its sample, [S]."""

    def _samples(self) -> list[tuple[int, int]]:
        return list(pairwise(self.bounds))

    def blocked(self, rule: ScoreRule, queries: Tensor, keys: Tensor) -> Tensor:
        """Return [Q, K], true where a query does not see a key, for positions of both in the sequence."""
        is_other = self.sample[queries][:, None] != self.sample[keys][None, :]
        return is_other | rule.blocked(self.position[queries], self.position[keys])

    def attend(
        self, attention: Callable[[Tensor, Tensor, Tensor], Tensor], q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor
    ) -> Tensor:
        """Return causal `attention` of each sample, [S, B, N*D]; queries are those of the last positions of the keys."""
        first, stop = len(k_SBGD) - len(q_SBND), len(k_SBGD)
        met = [(start, min(end, stop)) for start, end in self._samples() if first < end and start < min(end, stop)]
        # One split of each: its backward writes a gradient once, that of slices would add up as many whole ones.
        queries = q_SBND.split([end - max(start, first) for start, end in met])
        sizes = [met[0][0], *(end - start for start, end in met)]
        keys, values = (x.split(sizes)[1:] for x in (k_SBGD, v_SBGD))
        return torch.cat([attention(*each) for each in zip(queries, keys, values, strict=True)])


Mask = Tensor | Segments | None
"""What keeps tokens from seeing one another: bool [B or 1, 1, S, S], true where attention is blocked; samples; or causality."""


def sample_by_sample(mask: Mask, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Call a function of sequences, [S, ...] to [S, ...], for each packed sample alone; for the whole if there are none."""
    if not isinstance(mask, Segments):
        return function(*inputs)
    lengths = [stop - start for start, stop in pairwise(mask.bounds) if stop > start]
    return torch.cat([function(*parts) for parts in zip(*(x.split(lengths) for x in inputs), strict=True)])
