"""Variants of gated activations, and biases of experts: what reaches the container, and what is refused."""

from typing import Any

import pytest

MOE: dict[str, Any] = {"num_experts": 4}


def test_variants_reach_the_model(build: Any) -> None:
    model = build(
        {"swiglu": False, "quick_geglu": True, "activation_func_clamp_value": 7.0, "glu_linear_offset": 1.0}
    ).config.model
    assert (model.activation, model.activation_clamp, model.glu_linear_offset) == ("quick_geglu", 7.0, 1.0)
    assert (build({}).config.model.activation_clamp, build({}).config.model.glu_linear_offset) == (None, 0.0)


@pytest.mark.parametrize(
    ("keys", "ranks", "message"),
    [
        ({"swiglu": False, "activation_func_clamp_value": 7.0}, 1, "activation_func_clamp_value: null"),
        ({"swiglu": False, "squared_relu": True, "glu_linear_offset": 1.0}, 1, "glu_linear_offset: 0.0"),
        ({"activation_func_clamp_value": 0.0}, 1, "a number above 0, or null"),
        ({**MOE, "add_bias_linear": True, "moe_shared_expert_intermediate_size": 8}, 1, "set one of them to false or null"),
        (
            {**MOE, "add_bias_linear": True, "tensor_model_parallel_size": 2, "sequence_parallel": True},
            2,
            "needs expert_tensor_parallel_size: 1 (it is 2)",
        ),
    ],
    ids=str,
)
def test_refused(problems_of: Any, keys: dict[str, Any], ranks: int, message: str) -> None:
    problems = problems_of(keys, world_size=ranks)
    assert any(message in problem for problem in problems), problems
