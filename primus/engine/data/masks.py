"""Loss mask, positions and attention mask of a sample, from its end-of-document tokens. No torch.

`eod_mask_loss` takes the loss off predictions made from an end-of-document token; `reset_position_ids` restarts positions
behind one; `reset_attention_mask` lets no token see across one (true means masked out).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["attention_mask", "loss_mask", "position_ids"]

Tokens = NDArray[Any]


def loss_mask(tokens: Tokens, eod: int) -> NDArray[np.float32]:
    """Return 1.0 where the prediction made from this token counts."""
    return np.asarray(tokens != eod, np.float32)


def position_ids(tokens: Tokens, eod: int) -> NDArray[np.int64]:
    """Return the position of each token in its document."""
    return np.arange(len(tokens), dtype=np.int64) - _starts(tokens, eod)


def attention_mask(tokens: Tokens, eod: int, *, reset: bool) -> NDArray[np.bool_]:
    """Return `[1, s, s]`, true where row (query) must not see column (key): later tokens, and with `reset` other documents."""
    positions = np.arange(len(tokens))
    blocked = positions[None, :] > positions[:, None]
    if reset:
        blocked |= positions[None, :] < _starts(tokens, eod)[:, None]
    return np.asarray(blocked[None], np.bool_)


def _starts(tokens: Tokens, eod: int) -> NDArray[np.int64]:
    """Return where each token's document starts within the sample; an end-of-document token belongs to the one it ends."""
    starts = np.zeros(len(tokens), np.int64)
    behind = np.flatnonzero(tokens[:-1] == eod) + 1
    starts[behind] = behind
    return np.maximum.accumulate(starts)
