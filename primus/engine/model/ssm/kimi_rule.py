"""The delta rule with a decay for each channel, in chunks (Kimi delta attention, arXiv 2510.26692): `kimi_delta_rule`.

state_t = diag(a_t) state_{t-1} + b_t k_t (v_t - (diag(a_t) state_{t-1})^T k_t)^T,  o_t = state_t^T q_t

What is kept between two tokens stands inside the product of their vectors. Between the two halves of a block it factors at the
border: what a token of the second half keeps since the border, times what is left at the border of one in the first. So
products of halves, of quarters and so on down to neighbours are products of matrices, all factors lie between 0 and 1, and the
exponents are sums of numbers that are not positive, never differences.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config.ssm import SCAN_CHUNK
from primus.engine.model.ssm.delta_rule import Kept, chunks, from_chunk_to_chunk

__all__ = ["kimi_delta_rule"]


def kimi_delta_rule(
    q_SBND: Tensor, k_SBND: Tensor, v_SBND: Tensor, log_SBND: Tensor, write_SBN: Tensor, *, chunk: int = SCAN_CHUNK
) -> Tensor:
    """Return o [S, B, N, D of v] in at least fp32; the state starts at zero. `log` is that of what is kept, `write` is b.

    `chunk` is a power of two.
    """
    length, dtype = len(q_SBND), torch.promote_types(q_SBND.dtype, torch.float32)
    q, k, v, log = (chunks(x.to(dtype), chunk) for x in (q_SBND, k_SBND, v_SBND, log_SBND))
    write = chunks(write_SBN.to(dtype)[..., None], chunk)
    return from_chunk_to_chunk(q, k, v, write, _kept(q, k, log))[:length]


def _kept(q: Tensor, k: Tensor, log: Tensor) -> Kept:
    """Join blocks of tokens two by two, from one token a block to all of a chunk."""
    rows = torch.stack((q, k), dim=-2)  # [..., tokens, 2, D]
    products = (rows * k[..., None, :]).sum(-1)[..., None]  # [..., blocks, rows of a block, tokens of a block]
    # [..., blocks, tokens of a block, D]: logarithms of what is kept since a block's start, until its end, and from end to end.
    since, until, total = log[..., None, :], torch.zeros_like(log)[..., None, :], log[..., None, :]
    blocks = k.shape[-2]
    while blocks > 1:
        blocks //= 2
        (above, below), (since_0, since_1), (until_0, until_1), (total_0, total_1) = (
            x.unflatten(-3, (blocks, 2)).unbind(-3) for x in (products, since, until, total)
        )
        later = rows.unflatten(-3, (blocks, 2, -1)).unbind(-4)[1] * torch.exp(since_1)[..., None, :]
        earlier = k.unflatten(-2, (blocks, 2, -1)).unbind(-3)[0] * torch.exp(until_0)
        across = later.flatten(-3, -2) @ earlier.mT
        products = torch.cat((F.pad(above, (0, across.shape[-1])), torch.cat((across, below), -1)), -2)
        since = torch.cat((since_0, since_1 + total_0), -2)
        until = torch.cat((until_0 + total_1, until_1), -2)
        total = total_0 + total_1
    queries, keys = products.squeeze(-3).unflatten(-2, (-1, 2)).unbind(-2)
    return Kept(queries=queries, keys=keys, since_start=torch.exp(since.squeeze(-3)), until_end=torch.exp(until.squeeze(-3)))
