"""Products of many experts in one launch: each program makes one tile of the result, of rows of one expert."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from primus.engine.kernels.triton_forms.wide import wide_type

__all__ = ["product_each"]

_ROWS, _COLUMNS, _DEPTH = 64, 64, 32


def product_each(x_MA: Tensor, matrices_EAB: Tensor, out_MB: Tensor, counts: Sequence[int]) -> None:
    """Fill out with x_e @ matrix_e for each expert's `counts[e]` rows; all three may be views of any strides."""
    tiles = _tiles(counts)
    if not tiles:
        return
    depth, columns = matrices_EAB.shape[1:]
    _product[(len(tiles), triton.cdiv(columns, _COLUMNS))](
        x_MA,
        matrices_EAB,
        out_MB,
        torch.tensor(tiles, dtype=torch.int32).to(x_MA.device, non_blocking=True),
        depth,
        columns,
        *x_MA.stride(),
        *matrices_EAB.stride(),
        *out_MB.stride(),
        WIDE=wide_type(torch.promote_types(x_MA.dtype, torch.float32)),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        DEPTH=_DEPTH,
    )


def _tiles(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return expert, first row and end of the expert's rows for each tile of rows."""
    tiles, start = [], 0
    for expert, count in enumerate(counts):
        stop = start + count
        tiles += [(expert, first, stop) for first in range(start, stop, _ROWS)]
        start = stop
    return tiles


@triton.jit
def _product(
    x, matrices, out, tiles, depth, columns, x_row, x_column, m_expert, m_row, m_column, out_row, out_column,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    expert = tl.load(tiles + 3 * tile).to(tl.int64)
    rows = tl.load(tiles + 3 * tile + 1).to(tl.int64) + tl.arange(0, ROWS)
    inside_rows = rows < tl.load(tiles + 3 * tile + 2)
    across = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside_columns = across < columns
    total = tl.zeros((ROWS, COLUMNS), dtype=WIDE)
    for start in range(0, depth, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        inside = inner < depth
        a = tl.load(
            x + rows[:, None] * x_row + inner[None, :] * x_column, mask=inside_rows[:, None] & inside[None, :], other=0.0
        )
        b = tl.load(
            matrices + expert * m_expert + inner[:, None] * m_row + across[None, :] * m_column,
            mask=inside[:, None] & inside_columns[None, :],
            other=0.0,
        )
        # Without tf32: fp32 matrices are multiplied as torch does it.
        total = tl.dot(a, b, total, input_precision="ieee", out_dtype=WIDE)
    where = out + rows[:, None] * out_row + across[None, :] * out_column
    tl.store(where, total, mask=inside_rows[:, None] & inside_columns[None, :])
