"""Adam and SGD: the fused forms equal the formulas, and the formulas equal torch's optimizers."""

from typing import Any

import pytest
import torch

from primus.engine.optim.adam import Adam
from primus.engine.optim.rule import Hyper
from primus.engine.optim.sgd import SGD

SIZES = (1, 7, 64, 1003)
TOLERANCE = {torch.float32: {"rtol": 2e-6, "atol": 1e-7}, torch.float64: {"rtol": 1e-13, "atol": 1e-15}}


def tensors(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, dtype=dtype, generator=generator) for size in SIZES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("divisor", [1.0, 3.7])
@pytest.mark.parametrize(
    "rule", [Adam(beta1=0.9, beta2=0.95, eps=1e-8), SGD(momentum=0.9), SGD(momentum=0.0)], ids=["adam", "sgd", "sgd-plain"]
)
def test_fused_form_equals_the_formula(rule: Any, divisor: float, dtype: torch.dtype) -> None:
    fused, plain = tensors(dtype, 1), tensors(dtype, 1)
    states = [[torch.zeros_like(p) for p in fused] for _ in rule.state_names]
    plain_states = [[torch.zeros_like(p) for p in fused] for _ in rule.state_names]
    for step in (1, 2, 3):
        h = Hyper(lr=0.01, weight_decay=0.1, step=step, grad_divisor=divisor)
        rule.update_(fused, tensors(dtype, 10 + step), states, h)
        for i, grad in enumerate(tensors(dtype, 10 + step)):
            state = [s[i] for s in plain_states]
            rule.reference_(plain[i], grad, *(state if state or isinstance(rule, Adam) else [None]), h)
    torch.testing.assert_close(fused, plain, **TOLERANCE[dtype])
    torch.testing.assert_close(states, plain_states, **TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (Adam(beta1=0.9, beta2=0.99, eps=1e-3), lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.99), 1e-3, 0.1)),
        (SGD(momentum=0.8), lambda p: torch.optim.SGD(p, 0.01, momentum=0.8, weight_decay=0.1)),
        (SGD(momentum=0.0), lambda p: torch.optim.SGD(p, 0.01, weight_decay=0.1)),
    ],
    ids=["adam", "sgd", "sgd-plain"],
)
def test_formula_equals_torch(rule: Any, theirs: Any) -> None:
    params = [torch.nn.Parameter(p) for p in tensors(torch.float64, 1)]
    ours = tensors(torch.float64, 1)
    states = [[torch.zeros_like(p) for p in ours] for _ in rule.state_names]
    optimizer = theirs(params)
    for step in (1, 2, 3):
        for param, grad in zip(params, tensors(torch.float64, 10 + step), strict=True):
            param.grad = grad
        optimizer.step()
        rule.update_(ours, tensors(torch.float64, 10 + step), states, Hyper(lr=0.01, weight_decay=0.1, step=step))
    torch.testing.assert_close(ours, [p.data for p in params], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "rule",
    [Adam(beta1=0.9, beta2=0.95, eps=1e-8), Adam(beta1=0.0, beta2=0.95, eps=1e-8), SGD(momentum=0.9), SGD(momentum=0.0)],
    ids=["adam", "adam-without-mean", "sgd", "sgd-plain"],
)
def test_an_update_is_taken_back_to_rounding(rule: Any) -> None:
    params = tensors(torch.float64, 1)
    states = [[torch.zeros_like(p) for p in params] for _ in rule.state_names]
    for step in (1, 2, 3):
        h = Hyper(lr=0.01, weight_decay=0.1, step=step, grad_divisor=3.7)
        before, states_before = [p.clone() for p in params], [[s.clone() for s in state] for state in states]
        rule.update_(params, tensors(torch.float64, 10 + step), states, h)
        after, states_after = [p.clone() for p in params], [[s.clone() for s in state] for state in states]
        rule.undo_(params, tensors(torch.float64, 10 + step), states, h)
        torch.testing.assert_close(params, before, rtol=1e-12, atol=1e-13)
        # Where the next average takes nothing of this one, nothing is known of it, and nothing needed.
        known = [i for i, name in enumerate(rule.state_names) if name != "exp_avg" or rule.beta1 > 0.0]
        for i in known:
            torch.testing.assert_close(states[i], states_before[i], rtol=1e-12, atol=1e-13)
        rule.update_(params, tensors(torch.float64, 10 + step), states, h)
        torch.testing.assert_close(params, after, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(states, states_after, rtol=1e-12, atol=1e-13)


def test_a_dtype_without_fused_form_takes_the_formula() -> None:
    param, grad = torch.ones(4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)
    rule = SGD(momentum=0.0)
    rule.update_([param], [grad], [], Hyper(lr=0.5, weight_decay=0.0, step=1, grad_divisor=2.0))
    assert param.tolist() == [0.75] * 4


def test_momentum_free_sgd_keeps_no_state() -> None:
    assert SGD(momentum=0.0).state_names == ()
