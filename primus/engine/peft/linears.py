"""Linears with an adapter: what the linear gives, plus alpha / r B A x; with DoRA its rows are rescaled to a learned length.

They take the place of a linear, and hold its weight and bias under the same names. Under sequence parallelism A meets this
rank's slice, or the narrow sum is scattered: what travels besides the linear's own is r numbers a token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.config.peft import PEFTConfig
from primus.engine.kernels.adapted_linear import adapted_linear, add_product
from primus.engine.kernels.linear import linear
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.parameter import Place
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Sharding, sharding_of
from primus.engine.peft.adapter import Adapter, LoRA

__all__ = ["AdaptedLinear", "AdaptedRowLinear", "Linear", "adapted", "adapted_row_squares", "magnitude_sharding", "row_squares"]

Linear = ColumnParallelLinear | RowParallelLinear | ReplicatedLinear
Through = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """Where the ranks of a linear communicate."""

    frozen: Callable[[Tensor, nn.Parameter, nn.Parameter | None], Tensor]
    """x W^T + b."""
    enter: Through | None = None
    """What x passes first."""
    between: Through | None = None
    """What A x passes before it meets B."""
    leave: Through | None = None
    """What the sum passes last."""
    sums_columns: Group | None = None
    """Ranks that divide the columns of the weight."""
    features_are_divided: tuple[bool, bool] = (False, False)
    """Ranks have other features of x, or of y; or other tokens."""


class AdaptedLinear(nn.Module):
    """A linear without or with bias, which is added."""

    adapter: Adapter

    def __init__(self, place: Place, base: Linear, adapter: Adapter, peft: PEFTConfig) -> None:
        super().__init__()
        self.weight: nn.Parameter = base.weight
        self.bias: nn.Parameter | None = None if isinstance(base, ReplicatedLinear) else base.bias
        self.adapter = adapter
        self.is_enabled = True
        """False: as if there were no adapter."""
        self.scale = peft.alpha / peft.dim
        self._form = _form_of(place, base)
        divided_in, divided_out = self._form.features_are_divided
        self._drop_in = _Dropout(place, peft.dropout if peft.dropout_position == "pre" else 0.0, apart=divided_in)
        self._drop_out = _Dropout(place, peft.dropout if peft.dropout_position == "post" else 0.0, apart=divided_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: nn.Parameter | None) -> Tensor:
        """Return what the linear gives, with the adapter's part."""
        form = self._form
        if form.enter is not None:
            x = form.enter(x)
        y = self._sum(x, bias) if self.is_enabled else form.frozen(x, self.weight, bias)
        return y if form.leave is None else form.leave(y)

    def _sum(self, x: Tensor, bias: nn.Parameter | None) -> Tensor:
        form, (a, b) = self._form, self.adapter.factors()
        dropped = self._drop_in(x)
        if form.between is None and not self._drop_out.is_active:
            return adapted_linear(x, dropped, self.weight, bias, a, b, self.scale)
        y = form.frozen(x, self.weight, bias)
        h = linear(x if dropped is None else dropped, a)
        if form.between is not None:
            h = form.between(h)
        if not self._drop_out.is_active:
            return add_product(y, h, b, self.scale)
        delta = linear(h, b) * self.scale
        kept = self._drop_out(delta)
        return y + (delta if kept is None else kept)


class AdaptedRowLinear(AdaptedLinear):
    """A linear that hands its bias back unadded."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return self.product(x, None), self.bias


class _Rescaled(AdaptedLinear):
    """DoRA: y = m/n (W x + s B A x) + b with n the row norms of W + s B A, which pass no gradient.

    Where dropout makes d of x, the base term keeps all of x: y = W (x - d) + m/n (W d + s B A d) + b.
    """

    def product(self, x: Tensor, bias: nn.Parameter | None) -> Tensor:
        if not self.is_enabled:
            return super().product(x, bias)
        form = self._form
        if form.enter is not None:
            x = form.enter(x)
        a, b = self.adapter.factors()
        dropped = self._drop_in(x)
        z = x if dropped is None else dropped
        if form.between is None:
            y = adapted_linear(z, None, self.weight, None, a, b, self.scale)
        else:
            y = add_product(form.frozen(z, self.weight, None), form.between(linear(z, a)), b, self.scale)
        if form.leave is not None:
            y = form.leave(y)
        # Not in 8 bits, which would let a length go its way in leaps, and its gradient with it.
        y = (y * self._factors(a, b)).to(y.dtype)
        if dropped is not None:
            rest = form.frozen(x - dropped, self.weight, None)
            y = y + (rest if form.leave is None else form.leave(rest))
        return y if bias is None else y + bias

    def _factors(self, a: Tensor, b: Tensor) -> Tensor:
        """Return m/n [out]."""
        assert isinstance(self.adapter, LoRA)
        with torch.no_grad():
            squares = adapted_row_squares(self.weight, a, b, self.scale)
            if self._form.sums_columns is not None:
                collectives.all_reduce_(squares, self._form.sums_columns)
            norms = squares.sqrt()
        return self.adapter.weight_magnitude / norms


class _RescaledRow(_Rescaled):
    """A linear that hands its bias back unadded."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return self.product(x, None), self.bias


def adapted(place: Place, base: Linear, adapter: Adapter, peft: PEFTConfig) -> AdaptedLinear:
    """Return what takes the place of a linear."""
    is_row = isinstance(base, RowParallelLinear)
    if peft.scheme == "dora":
        return (_RescaledRow if is_row else _Rescaled)(place, base, adapter, peft)
    return (AdaptedRowLinear if is_row else AdaptedLinear)(place, base, adapter, peft)


def magnitude_sharding(weight: nn.Parameter, place: Place) -> Sharding:
    """Return how the row norms of a weight are divided: as its rows are."""
    sharding = sharding_of(weight)
    if sharding.dim == 0:
        return Sharding(dim=0, blocks=sharding.blocks)
    return Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)


def row_squares(weight: Tensor) -> Tensor:
    """Return the sum of squares of each row, in at least fp32."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    squares: Tensor = torch.linalg.vector_norm(weight, dim=-1, dtype=wide).square()
    return squares


def adapted_row_squares(weight: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return the sums of squares of the rows of W + s B A without that matrix: |w|^2 + 2 s b.(A w) + s^2 b.(A A^T) b.

    All may be stacks.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    a_wide, b_wide = a.to(wide), b.to(wide)
    cross = (weight @ a.mT).to(wide)
    return row_squares(weight) + (b_wide * (2 * scale * cross + scale**2 * (b_wide @ (a_wide @ a_wide.mT)))).sum(-1)


class _Dropout(nn.Module):
    """Dropout of what an adapter reads or gives."""

    def __init__(self, place: Place, share: float, *, apart: bool) -> None:
        """`apart`: tensor-parallel ranks see other values, and drop others."""
        super().__init__()
        self._streams, self._share = place.streams, share
        self._stream = "model-parallel" if apart else None
        self.is_active = share > 0.0

    def forward(self, x: Tensor) -> Tensor | None:
        """Return what is left of x; None where nothing is dropped."""
        if not (self.is_active and self.training):
            return None
        with self._streams.fork(self._stream):
            return F.dropout(x, self._share)


def _form_of(place: Place, base: Linear) -> _Form:
    tp, slices = place.tp, place.sequence_parallel
    if tp.size == 1:
        return _Form(frozen=linear)
    if isinstance(base, ReplicatedLinear):
        return _Form(frozen=linear, features_are_divided=(slices, slices))
    if isinstance(base, ColumnParallelLinear):
        if slices:
            between = partial(collectives.gather_sequence, group=tp)
            return _Form(frozen=base.product, between=between, features_are_divided=(True, True))
        enter = partial(collectives.copy_to_group, group=tp)
        return _Form(frozen=linear, enter=enter, features_are_divided=(False, True))
    if slices:
        between = partial(collectives.reduce_scatter_sequence, group=tp)
        row = base.product
        return _Form(
            frozen=lambda x, weight, _: row(x, weight), between=between, sums_columns=tp, features_are_divided=(True, True)
        )
    leave = partial(collectives.sum_forward, group=tp)
    return _Form(frozen=linear, leave=leave, sums_columns=tp, features_are_divided=(True, False))
