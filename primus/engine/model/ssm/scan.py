"""The selective scan in chunks (state-space duality, arXiv 2405.21060 section 6): `selective_scan`.

state_t = exp(dt_t A) state_{t-1} + dt_t b_t x_t^T,  y_t = c_t state_t

Within a chunk that is a masked product of matrices; chunks hand on their last state, decayed. All exponents are sums of
numbers that are not positive, so nothing overflows. Z numbers of state for each channel, N heads in G groups that share b
and c.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config.ssm import SCAN_CHUNK

__all__ = ["between", "selective_scan"]


def selective_scan(
    x_SBND: Tensor, dt_SBN: Tensor, decay_N: Tensor, b_SBGZ: Tensor, c_SBGZ: Tensor, *, chunk: int = SCAN_CHUNK
) -> Tensor:
    """Return y [S, B, N, D] in at least fp32; the state starts at zero. `decay_N` is A, negative."""
    length, groups = len(x_SBND), b_SBGZ.shape[2]
    dtype = torch.promote_types(x_SBND.dtype, torch.float32)
    # Heads [N] as [G, R]: those of a group share products, and nothing is repeated for them.
    dt = _chunks(dt_SBN.to(dtype), chunk).unflatten(-1, (groups, -1))
    x = _chunks(x_SBND.to(dtype), chunk).unflatten(-2, (groups, -1)) * dt[..., None]
    b, c = (_chunks(m.to(dtype), chunk) for m in (b_SBGZ, c_SBGZ))
    log = (dt * decay_N.to(dtype).unflatten(0, (groups, -1))).movedim(1, -1).cumsum(-1)  # [chunks, B, G, R, tokens]
    within = torch.einsum("clbgz,cmbgz->cbglm", c, b)[:, :, :, None] * between(log)
    left = torch.exp(log[..., -1:] - log).movedim(-1, 1)
    made = torch.einsum("cmbgz,cmbgrd->cbgrzd", b, x * left[..., None])
    state = torch.einsum("bgrij,jbgrzd->ibgrzd", _handed_on(log[..., -1]), made)
    came = torch.einsum("clbgz,cbgrzd->clbgrd", c, state) * torch.exp(log).movedim(-1, 1)[..., None]
    y = torch.einsum("cbgrlm,cmbgrd->clbgrd", within, x) + came
    return y.flatten(0, 1).flatten(2, 3)[:length]


def between(log: Tensor) -> Tensor:
    """Return what is left at token l of what came in at m, [..., l, m]; 0 where m is later than l."""
    difference = log[..., :, None] - log[..., None, :]
    later = torch.ones(difference.shape[-2:], dtype=torch.bool, device=log.device).triu(1)
    return torch.exp(difference.masked_fill(later, -torch.inf))


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Return [chunks, tokens, ...]; zeros fill the last one, which leave the state alone."""
    padded = F.pad(x, (*(0, 0) * (x.dim() - 1), 0, -len(x) % chunk))
    return padded.view(-1, chunk, *x.shape[1:])


def _handed_on(total: Tensor) -> Tensor:
    """Return what is left before chunk i of the state that chunk j made, [..., i, j]; 0 where j is not earlier than i.

    `total` [chunks, ...] is the logarithm of what a chunk leaves of what comes in.
    """
    log = F.pad(total.movedim(0, -1).cumsum(-1), (1, 0))
    difference = log[..., :-1, None] - log[..., None, 1:]
    not_earlier = torch.ones(difference.shape[-2:], dtype=torch.bool, device=log.device).triu()
    return torch.exp(difference.masked_fill(not_earlier, -torch.inf))
