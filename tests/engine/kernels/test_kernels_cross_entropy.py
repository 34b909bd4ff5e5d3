"""Cross entropy: both forms equal the library's, chunk borders, padding columns, half precision, no whole logits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import primus.engine.kernels.cross_entropy as room
from primus.engine.kernels.cross_entropy import (
    Columns,
    deferrable_linear_cross_entropy,
    linear_cross_entropy,
    vocab_parallel_cross_entropy,
)
from primus.engine.parallel.deferred import DeferredProducts
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.slot import GradientSlot

ALONE = Group((0,), 0)


def case(T: int = 150, H: int = 6, V: int = 20) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(T, H, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(V, H, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(V, (T,), generator=generator)
    return hidden, weight, labels, torch.rand(T, generator=generator, dtype=torch.float64)


def gradients(loss: Tensor, *of: Tensor) -> tuple[Any, ...]:
    return torch.autograd.grad(3.0 * loss, of)


def test_token_losses_equal_the_library() -> None:
    hidden, weight, labels, w = case()
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="none")
    actual = vocab_parallel_cross_entropy(hidden @ weight.T, labels, Columns(0, 20, ALONE))
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    for a, e in zip(gradients(actual @ w, hidden, weight), gradients(expected @ w, hidden, weight), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", [linear_cross_entropy, deferrable_linear_cross_entropy])
@pytest.mark.parametrize("tokens", [1, 64, 65, 150], ids="{} tokens".format)
def test_chunked_sum_equals_the_library(tokens: int, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(room, "_CHUNK_TOKENS", 64)
    hidden, weight, labels, w = case(tokens)
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="none") @ w
    actual = form(hidden, weight, labels, w, Columns(0, 20, ALONE))
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
    for a, e in zip(gradients(actual, hidden, weight), gradients(expected, hidden, weight), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", [linear_cross_entropy, deferrable_linear_cross_entropy])
def test_a_frozen_matrix_costs_no_product_and_no_memory(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels, w = case()
    (expected,) = gradients(form(hidden, weight, labels, w, Columns(0, 20, ALONE)), hidden)
    monkeypatch.setattr(room, "_add_product_", lambda *_: pytest.fail("the gradient of a frozen matrix was computed"))
    loss = form(hidden, weight.detach(), labels, w, Columns(0, 20, ALONE))
    assert all(saved is None or saved.shape == hidden.shape for saved in loss.grad_fn.saved_tensors)
    (actual,) = gradients(loss, hidden)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


def test_padding_columns_take_no_part() -> None:
    hidden, weight, labels, w = case(V=20)
    labels = labels % 15
    expected = F.cross_entropy(hidden @ weight[:15].T, labels, reduction="none") @ w
    columns = Columns(0, 15, ALONE)
    whole = vocab_parallel_cross_entropy(hidden @ weight.T, labels, columns) @ w
    chunked = linear_cross_entropy(hidden, weight, labels, w, columns)
    for actual in (whole, chunked):
        torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)
        (d_weight,) = torch.autograd.grad(actual, weight)
        assert torch.all(d_weight[15:] == 0)


def test_half_precision_logits_have_wide_statistics() -> None:
    hidden, weight, labels, w = (t.detach() for t in case())
    half_hidden, half_weight = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    exact = F.cross_entropy(half_hidden.double() @ half_weight.double().T, labels, reduction="none") @ w
    actual = linear_cross_entropy(half_hidden, half_weight, labels, w.float(), Columns(0, 20, ALONE))
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), exact, rtol=1e-3, atol=0)
    d_hidden, d_weight = torch.autograd.grad(actual, (half_hidden, half_weight))
    assert d_hidden.dtype == d_weight.dtype == torch.bfloat16
    losses = vocab_parallel_cross_entropy(half_hidden @ half_weight.T, labels, Columns(0, 20, ALONE))
    assert losses.dtype == torch.float32


def test_in_fp16_stays_in_half_precision() -> None:
    hidden, weight, labels, _ = (t.detach() for t in case())
    logits = (hidden @ weight.T).half()
    losses = vocab_parallel_cross_entropy(logits, labels, Columns(0, 20, ALONE), in_fp16=True)
    assert losses.dtype == torch.float16


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float32)
    losses = vocab_parallel_cross_entropy(logits, torch.tensor([1]), Columns(0, 3, ALONE))
    torch.testing.assert_close(losses, torch.tensor([2e4]))


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_add_product_", lambda *_: pytest.fail("computed a weight gradient"))
    hidden, weight, labels, w = case()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, labels, w, Columns(0, 20, ALONE))
    assert not loss.requires_grad


class Quiet:
    """Looks after a slot that always has memory."""

    def before_add(self, slot: GradientSlot) -> None:
        """Do nothing."""

    def added(self, slot: GradientSlot) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_gradient_of_the_matrix_can_wait(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(room, "_CHUNK_TOKENS", 64)
    hidden, weight, labels, w = (t.detach() for t in case())
    hidden, matrix = hidden.to(dtype).requires_grad_(), torch.nn.Parameter(weight.to(dtype))
    expected = gradients(linear_cross_entropy(hidden, matrix, labels, w, Columns(0, 20, ALONE)), hidden, matrix)
    waiting = DeferredProducts()
    slot = GradientSlot("w", torch.zeros(matrix.shape, dtype=torch.promote_types(dtype, torch.float32)), Quiet(), waiting)
    matrix.grad_slot = slot  # type: ignore[attr-defined]
    with waiting.keeping("microbatch"):
        (3.0 * deferrable_linear_cross_entropy(hidden, matrix, labels, w, Columns(0, 20, ALONE))).backward()
    assert slot.is_empty
    assert matrix.grad is None
    torch.testing.assert_close(hidden.grad, expected[0])
    waiting.compute("microbatch")
    assert (slot.value - expected[1]).abs().max() <= tolerance * expected[1].abs().max()


def test_what_waits_is_no_wider_than_the_hidden_states() -> None:
    hidden, weight, labels, w = (t.detach() for t in case())
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    kept: list[tuple[tuple[int, ...], torch.dtype]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append((tuple(t.shape), t.dtype)) or t, lambda t: t):
        deferrable_linear_cross_entropy(hidden, weight, labels, w, Columns(0, 20, ALONE))
    assert kept == [((150, 6), torch.bfloat16), ((150, 6), torch.bfloat16), ((150, 20), torch.bfloat16)]
