"""The gated delta rule in chunks (arXiv 2412.06464): `gated_delta_rule`.

state_t = a_t state_{t-1} + b_t k_t (v_t - a_t state_{t-1}^T k_t)^T,  o_t = state_t^T q_t

A token writes what its key does not yet lead to. Within a chunk, what each token writes depends on the ones before: a
triangular system, solved at once for all of its tokens; chunks follow one another.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config.ssm import SCAN_CHUNK
from primus.engine.model.ssm.scan import between

__all__ = ["Kept", "chunks", "from_chunk_to_chunk", "gated_delta_rule"]


def gated_delta_rule(
    q_SBND: Tensor, k_SBND: Tensor, v_SBND: Tensor, log_SBN: Tensor, write_SBN: Tensor, *, chunk: int = SCAN_CHUNK
) -> Tensor:
    """Return o [S, B, N, D of v] in at least fp32; the state starts at zero. `log` is that of what is kept, `write` is b."""
    length, dtype = len(q_SBND), torch.promote_types(q_SBND.dtype, torch.float32)
    q, k, v = (chunks(x.to(dtype), chunk) for x in (q_SBND, k_SBND, v_SBND))
    log, write = (chunks(x.to(dtype)[..., None], chunk) for x in (log_SBN, write_SBN))
    log = log.cumsum(-2)
    kept = between(log[..., 0])
    since_start, until_end = torch.exp(log), torch.exp(log[..., -1:, :] - log)
    products = Kept(queries=q @ k.mT * kept, keys=k @ k.mT * kept, since_start=since_start, until_end=until_end)
    return from_chunk_to_chunk(q, k, v, write, products)[:length]


def chunks(x: Tensor, chunk: int) -> Tensor:
    """Return x [S, B, N, D] as [chunks, B, N, tokens, D]; zeros fill the last one: they write nothing."""
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % chunk))
    return padded.view(-1, chunk, *x.shape[1:]).permute(0, 2, 3, 1, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What is kept between the tokens of each chunk."""

    queries: Tensor
    """Products of queries with the keys up to them, [..., tokens, tokens], each with what is kept in between."""
    keys: Tensor
    """Products of keys with the keys before them, likewise; what stands on the diagonal and above is not read."""
    since_start: Tensor
    """Share of the chunk's first state that is left at a token, [..., tokens, 1 or D]."""
    until_end: Tensor
    """Share of what a token writes that is left at the chunk's end, likewise."""


def from_chunk_to_chunk(q: Tensor, k: Tensor, v: Tensor, write: Tensor, kept: Kept) -> Tensor:
    """Return o [S, B, N, D of v], S whole chunks, from queries, keys, values and b in chunks."""
    system = torch.eye(k.shape[-2], dtype=k.dtype, device=k.device) + (write * kept.keys).tril(-1)
    right = torch.cat((write * v, write * k * kept.since_start), -1)
    written = torch.linalg.solve_triangular(system, right, upper=False)
    from_tokens, from_state = written.split([v.shape[-1], k.shape[-1]], dim=-1)
    reads, leaves = q * kept.since_start, k * kept.until_end
    left = kept.since_start[..., -1:, :].mT
    state, out = q.new_zeros(*q.shape[1:3], q.shape[-1], v.shape[-1]), []
    # Taken apart at once: the backward of an index would write zeros for all chunks, for each of them.
    parts = (x.unbind() for x in (from_tokens, from_state, reads, kept.queries, left, leaves))
    for tokens, of_state, read, within, keeps, leaf in zip(*parts, strict=True):
        new = tokens - of_state @ state
        out.append(read @ state + within @ new)
        state = keeps * state + leaf.mT @ new
    return torch.stack(out).permute(0, 3, 1, 2, 4).flatten(0, 1)
