"""Keys of state-space models: which layers they make, what reaches the container, and what is refused."""

from typing import Any

import pytest

MAMBA: dict[str, Any] = {"model_type": "mamba", "mamba_head_dim": 8, "mamba_num_groups": 4}
HYBRID: dict[str, Any] = {**MAMBA, "is_hybrid_model": True}


def symbols(model: Any) -> str:
    """The pattern that the layers of a container make."""
    halves = zip(model.blocks.mixing, model.blocks.feed_forward, strict=True)
    names = {("mamba", "none"): "M", ("attention", "none"): "*", ("none", "mlp"): "-"}
    return "".join("E" if number in model.moe.layers else names[half] for number, half in enumerate(halves))


@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        (MAMBA, "MMMM"),
        ({**HYBRID, "hybrid_override_pattern": "-M*M"}, "-M*M"),
        ({**HYBRID, "hybrid_override_pattern": "M*ME", "num_experts": 4, "hybrid_attention_ratio": 0.5}, "M*ME"),
        (HYBRID, "M-M-"),
        ({**HYBRID, "num_layers": 16, "hybrid_attention_ratio": 0.25}, "*-M-M-M-*-M-M-M-"),
        ({**HYBRID, "num_layers": 14, "hybrid_attention_ratio": 0.3}, "*-M-M-*-M-M-M-"),
        ({**HYBRID, "num_layers": 4, "hybrid_attention_ratio": 0.5}, "*-M-"),
        ({**HYBRID, "num_layers": 5, "hybrid_attention_ratio": 0.2, "hybrid_mlp_ratio": 0.2}, "MM*M-"),
    ],
    ids=str,
)
def test_layers_are_those_of_the_keys(build: Any, keys: dict[str, Any], pattern: str) -> None:
    model = build(keys).config.model
    assert symbols(model) == pattern
    assert model.init.additions_per_layer == (1 if keys.get("is_hybrid_model") else 2)


def test_two_ratios_spread_evenly(build: Any) -> None:
    def found(attention: float, mlp: float) -> str:
        keys = {**HYBRID, "num_layers": 12, "hybrid_attention_ratio": attention, "hybrid_mlp_ratio": mlp}
        return symbols(build(keys).config.model)

    assert found(0.25, 0.01) == "MM*MMM*MM*MM"
    assert found(0.08, 0.5) == "M-M-M-*-M-M-"


def test_heads_fill_the_width_or_are_said(build: Any) -> None:
    assert build(MAMBA).config.model.mamba.num_heads == 8
    assert build({**MAMBA, "mamba_expand": 1}).config.model.mamba.num_heads == 4
    assert build({**MAMBA, "mamba_num_heads": 12}).config.model.mamba.num_heads == 12
    assert build({}).config.model.mamba.num_heads == 0
    assert build({}).config.model.blocks.mixing == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "kimi_k3"}, "model_type kimi_k3 (exp.yaml:"),
        ({"hybrid_override_pattern": "MM"}, "describes 2 layers, but num_layers is 4"),
        ({"hybrid_override_pattern": "MxM?"}, "has ? or x: a layer is M (mixer)"),
        ({"hybrid_override_pattern": "MEMM"}, "set num_experts"),
        ({"hybrid_override_pattern": "MMMM", "num_experts": 4}, "has no E"),
        ({"is_hybrid_model": False, "num_experts": 4}, "are the E of hybrid_override_pattern"),
        ({"num_layers": 3}, "use an even number"),
        ({"hybrid_attention_ratio": 0.75}, "is more than half of the mixers"),
        ({"hybrid_attention_ratio": 0.5, "hybrid_mlp_ratio": 0.5}, "leave no mixer among 4 layers"),
        ({"mamba_head_dim": 7}, "is not divisible by mamba_head_dim 7"),
        ({"mamba_num_groups": 3}, "8 heads of a Mamba mixer are not divisible by mamba_num_groups 3"),
        ({"reset_attention_mask": True, "create_attention_mask_in_dataloader": True}, "set reset_attention_mask: false"),
        ({"num_seq_splits": 2, "patch_zero_bubble": True}, "set num_seq_splits: 1"),
    ],
    ids=str,
)
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**HYBRID, **keys})
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"context_parallel_size": 2}, "set context_parallel_size: 1"),
        ({"tensor_model_parallel_size": 2, "mamba_num_groups": 1}, "mamba_num_groups 1 (exp.yaml:"),
    ],
    ids=str,
)
def test_refused_on_two_ranks(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**MAMBA, **keys}, world_size=2)
    assert any(message in problem for problem in problems), problems


LFM: dict[str, Any] = {"lfm_layer_types": ["conv", "conv", "full_attention", "conv"]}


def test_a_list_says_which_layers_are_convolutions(build: Any) -> None:
    blocks = build({**LFM, "num_experts": 4, "moe_layer_freq": 2}).config.model.blocks
    assert blocks.mixing == ("short_conv", "short_conv", "attention", "short_conv")
    assert blocks.feed_forward == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_layers": 2}, "lists 4 layers, but num_layers is 2"),
        ({"lfm_layer_types": ["conv", "attention"] * 2}, "lfm_layer_types"),
        (MAMBA, "exclude each other: each says what stands in all layers"),
        ({"heterogeneous_layers_config_path": "layers.json"}, "and a description of each layer exclude each other"),
        ({"reset_attention_mask": True, "create_attention_mask_in_dataloader": True}, "the state of lfm_layer_types ("),
    ],
    ids=str,
)
def test_a_wrong_list_is_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**LFM, **keys})
    assert any(message in problem for problem in problems), problems


DELTA: dict[str, Any] = {"experimental_attention_variant": "gated_delta_net", "linear_num_key_heads": 2}
KIMI: dict[str, Any] = {"experimental_attention_variant": "kimi_delta_attention"}


@pytest.mark.parametrize(
    ("keys", "mixing"),
    [
        ({}, ("gated_delta",) * 4),
        ({"linear_attention_freq": 2}, ("gated_delta", "attention") * 2),
        ({"linear_attention_freq": "[1]*3+[0]"}, ("gated_delta", "gated_delta", "gated_delta", "attention")),
        ({**HYBRID, "hybrid_override_pattern": "M-*M"}, ("gated_delta", "none", "attention", "gated_delta")),
        ({**KIMI, "linear_attention_freq": 2}, ("kimi_delta", "attention") * 2),
        ({**KIMI, **HYBRID, "hybrid_override_pattern": "M-*M"}, ("kimi_delta", "none", "attention", "kimi_delta")),
    ],
    ids=str,
)
def test_linear_layers_follow_their_rhythm(build: Any, keys: dict[str, Any], mixing: tuple[str, ...]) -> None:
    model = build({**DELTA, **keys}).config.model
    assert model.blocks.mixing == mixing
    assert model.delta.num_key_heads == 2
    assert model.mamba.num_heads == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"experimental_attention_variant": "mamba_3"}, "experimental_attention_variant"),
        ({**KIMI, "context_parallel_size": 2}, "the state of experimental_attention_variant kimi_delta_attention ("),
        ({**KIMI, "linear_num_value_heads": 3}, "is not a multiple of linear_num_key_heads 2"),
        ({**KIMI, "apply_residual_connection_post_layernorm": True}, "has two norms beside one another, and none to add to"),
        ({"linear_num_value_heads": 3}, "is not a multiple of linear_num_key_heads 2"),
        ({"linear_attention_freq": "[1]"}, "linear_attention_freq"),
        ({"tensor_model_parallel_size": 4}, "linear_num_key_heads 2 (exp.yaml:"),
        ({"reset_attention_mask": True, "create_attention_mask_in_dataloader": True}, "set reset_attention_mask: false"),
        (LFM, "exclude each other"),
    ],
    ids=str,
)
def test_wrong_linear_layers_are_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**DELTA, **keys}, world_size=4)
    assert any(message in problem for problem in problems), problems
