"""Stands in for what a rank on the meta device lacks: peers that answer, values that the host reads, fused kernels.

Peers answer at once; a number that the host asks for is 1; attention holds what an accelerator's fused kernels hold, where
the meta device itself would take the formula and hold all scores.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeWork
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

from primus.engine.kernels import attention
from primus.engine.kernels.norm import frugal_rms_norm
from primus.engine.rehearsal.mode import Mode
from primus.engine.rehearsal.traffic import is_communication

__all__ = ["StandIn", "accelerator", "silent_world"]

_CAUSAL = object()
"""In place of the mask by which the last queries see all keys: it is a kind of tensor that cannot be made in here."""
_BACKEND = "silent"
dist.Backend.register_backend(_BACKEND, _create_fake_pg, extended_api=True, devices=["cpu", "meta"])


@contextmanager
def silent_world(rank: int, world_size: int) -> Iterator[None]:
    """Be one of `world_size` ranks of whom no other exists."""
    if world_size == 1:
        yield
        return
    dist.init_process_group(_BACKEND, rank=rank, world_size=world_size, store=FakeStore())
    try:
        # Torch's stand-in for work says that it never ends, and what is sent would be held for ever.
        with _replaced(FakeWork, "is_completed", lambda _: True):
            yield
    finally:
        dist.destroy_process_group()


class StandIn(Mode):
    """Answers operators that need a peer or a value."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_communication(func) and any(isinstance(x, Tensor) and x.is_meta for x in _flat(args)):
            work = FakeWork().boxed()
            return work if len(func._schema.returns) == 1 else (args[0], work)
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1.0 if args[0].dtype.is_floating_point else 1
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and str(kwargs.get("device")) == "cpu":
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is torch.ops.aten._fused_sgd_.default and args[0][0].is_meta:
            return None
        return func(*args, **kwargs)


@contextmanager
def accelerator() -> Iterator[None]:
    """Attend and norm as torch's fused kernels do, which keep less than the meta device's formulas.

    The functions themselves are replaced, as torch's function modes do not reach what a backward computes again.
    """
    with ExitStack() as stack:
        stack.enter_context(_replaced(F, "scaled_dot_product_attention", _attend))
        stack.enter_context(_replaced(F, "rms_norm", _rms_norm))
        stack.enter_context(_replaced(attention, "_causal_lower_right", lambda *_: _CAUSAL))
        yield


@contextmanager
def _replaced(module: ModuleType | type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, original)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Any, dropout_p: float, is_causal: bool, enable_gqa: bool, scale: float
) -> Tensor:
    """Flash attention takes half precision and one width of heads without a mask, memory-efficient attention the rest."""
    if attn_mask is _CAUSAL:
        attn_mask, is_causal = None, True
    if attn_mask is None and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] == v.shape[-1]:
        flash: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        return flash
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    bias = None if attn_mask is None else attn_mask.to(q.dtype).expand(q.shape[0], q.shape[1], -1, -1)
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, dropout_p, is_causal, scale=scale
    )[0]
    return out


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor, eps: float) -> Tensor:
    return frugal_rms_norm(x, weight, eps)


def _flat(args: tuple[Any, ...]) -> Iterator[Any]:
    for given in args:
        yield from given if isinstance(given, list) else [given]
