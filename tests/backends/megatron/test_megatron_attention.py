"""Keys of windows, chunks and layers without rotation: what reaches the container, and what is refused."""

import math
from typing import Any

import pytest

WHOLE: dict[str, Any] = {"qk_layernorm": True, "qk_norm_type": "per_layer", "normalization": "RMSNorm"}
RANKS = ("context_parallel_size", "tensor_model_parallel_size")
ROPE: dict[str, Any] = {"position_embedding_type": "rope", "num_layers": 4}


@pytest.mark.parametrize(
    ("keys", "window", "full_layers"),
    [
        ({"window_size": [3, 0]}, 4, ()),
        ({"window_size": [0, 0], "window_attn_skip_freq": 2}, 1, (1, 3)),
        ({"window_size": [3, -1], "window_attn_skip_freq": "[0]+[1]*3"}, 4, (0,)),
        ({"window_size": [3, 0], "window_attn_skip_freq": [1, 0, 1, 1]}, 4, (1,)),
        ({"window_size": [-1, 0], "window_attn_skip_freq": 2}, None, ()),
        ({"use_sink_attention": True, "sink_sliding_window": 4}, 4, (1, 3)),
        ({"use_sink_attention": True, "sink_sliding_window": 4, "sink_window_even_layers_only": False}, 4, ()),
        ({"use_sink_attention": True, "window_size": [3, 0]}, 4, ()),
    ],
    ids=str,
)
def test_a_window_counts_the_token_itself_and_leaves_layers_out(
    build: Any, keys: dict[str, Any], window: int | None, full_layers: tuple[int, ...]
) -> None:
    attention = build({**ROPE, **keys}).config.model.attention
    assert (attention.window, attention.full_layers) == (window, full_layers)


@pytest.mark.parametrize(("given", "layers"), [(2, (1, 3)), ("[1]+[0]*3", (0,)), ([0, 1, 1, 0], (1, 2)), (1, (0, 1, 2, 3))])
def test_layers_that_rotate_nothing(build: Any, given: Any, layers: tuple[int, ...]) -> None:
    assert build({**ROPE, "no_rope_freq": given}).config.model.position.unrotated_layers == layers


def test_heads_are_normed_each_or_together(build: Any) -> None:
    each = {"qk_layernorm": True}
    for keys, kind in ((WHOLE, "whole"), (each, "model"), ({**WHOLE, "qk_l2_norm": True}, "l2"), ({}, "none")):
        assert build({**ROPE, **keys}).config.model.attention.qk_norm == kind


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"window_size": [3]}, "window_size [3] (exp.yaml:"),
        ({"window_size": [-2, 0]}, "write two numbers, the keys before a token and 0, such as [127, 0]"),
        ({"window_size": [3, 2]}, "no key behind a token is seen; set window_size: [3, 0]"),
        ({"window_size": [3, 0], "use_sink_attention": True, "sink_sliding_window": 4}, "are two windows: leave one out"),
        ({"window_size": [3, 0], "window_attn_skip_freq": [1, 0]}, "it speaks of 2 layers and the model has 4"),
        ({"window_size": [3, 0], "window_attn_skip_freq": [1, 0, 2, 1]}, "0 (sees everything) or 1 (has the window)"),
        ({"no_rope_freq": 0}, "use 1 or more"),
        ({"no_rope_freq": "every second"}, "such as ([0]*3+[1])*12"),
        ({"no_rope_freq": [0, 1, 0, 3]}, "each layer is 0 (rotates) or 1 (rotates nothing)"),
        ({"no_rope_freq": 2, "multi_latent_attention": True}, "multi_latent_attention true (exp.yaml:"),
        ({"no_rope_freq": 2, "position_embedding_type": "none"}, "needs position_embedding_type rope (it is"),
        ({"attention_chunk_size": 0}, "attention_chunk_size"),
        ({**WHOLE, "normalization": "LayerNorm"}, "qk_norm_type per_layer (exp.yaml:"),
        ({**WHOLE, "multi_latent_attention": True}, "whose norms are of latent vectors: set per_head"),
        (
            {**WHOLE, "tensor_model_parallel_size": 4, "group_query_attention": True, "num_query_groups": 2},
            "needs a key head for each rank: tensor_model_parallel_size 4 (exp.yaml:",
        ),
        ({"attention_output_gate": True, "multi_latent_attention": True}, "attention_output_gate true (exp.yaml:"),
        ({"attn_temperature_floor": 0}, "attn_temperature_floor"),
        (
            {"use_sink_attention": True, "attention_dropout": 0.1, "context_parallel_size": 2, "cp_comm_type": "allgather"},
            "use p2p or a2a, or set attention_dropout: 0",
        ),
    ],
    ids=str,
)
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**ROPE, **keys}, world_size=math.prod(keys.get(key, 1) for key in RANKS))
    assert any(message in problem for problem in problems), problems


def test_a_window_that_no_layer_has_is_refused(problems_of: Any) -> None:
    (problem,) = problems_of({"window_size": [4, 0], "window_attn_skip_freq": 1})
    assert problem.startswith("window_attn_skip_freq 1 (exp.yaml:")
    assert "set it to null, or to 2 or more" in problem
