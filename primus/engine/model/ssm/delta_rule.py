"""The gated delta rule in chunks (arXiv 2412.06464): `gated_delta_rule`.

state_t = a_t state_{t-1} + b_t k_t (v_t - a_t state_{t-1}^T k_t)^T,  o_t = state_t^T q_t

A token writes what its key does not yet lead to. Within a chunk, what each token writes depends on the ones before: a
triangular system, solved at once for all of its tokens; chunks follow one another.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config.ssm import SCAN_CHUNK
from primus.engine.model.ssm.scan import between

__all__ = ["gated_delta_rule"]


def gated_delta_rule(
    q_SBND: Tensor, k_SBND: Tensor, v_SBND: Tensor, log_SBN: Tensor, write_SBN: Tensor, *, chunk: int = SCAN_CHUNK
) -> Tensor:
    """Return o [S, B, N, D of v] in at least fp32; the state starts at zero. `log` is that of what is kept, `write` is b."""
    length, dtype = len(q_SBND), torch.promote_types(q_SBND.dtype, torch.float32)
    q, k, v = (_chunks(x.to(dtype), chunk) for x in (q_SBND, k_SBND, v_SBND))
    log, write = (_chunks(x.to(dtype)[..., None], chunk) for x in (log_SBN, write_SBN))
    log = log.cumsum(-2)
    kept = between(log[..., 0])
    system = torch.eye(chunk, dtype=dtype, device=q.device) + (write * k @ k.mT * kept).tril(-1)
    written = torch.linalg.solve_triangular(system, torch.cat((write * v, write * k * torch.exp(log)), -1), upper=False)
    from_tokens, from_state = written.split([v.shape[-1], k.shape[-1]], dim=-1)
    within, reads = q @ k.mT * kept, q * torch.exp(log)
    last = log[..., -1:, :]
    leaves = k * torch.exp(last - log)
    state, out = q.new_zeros(*q.shape[1:3], q.shape[-1], v.shape[-1]), []
    for i in range(len(q)):
        new = from_tokens[i] - from_state[i] @ state
        out.append(reads[i] @ state + within[i] @ new)
        state = torch.exp(last[i]) * state + leaves[i].mT @ new
    return torch.stack(out).permute(0, 3, 1, 2, 4).flatten(0, 1)[:length]


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """Return [chunks, B, N, tokens, D]; zeros fill the last one: they write nothing."""
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % chunk))
    return padded.view(-1, chunk, *x.shape[1:]).permute(0, 2, 3, 1, 4)
