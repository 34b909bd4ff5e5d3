"""Layers described one by one: file, text and base64 say the same, all disagreements come at once."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "data/megatron/uneven_layers.json"
TEXT = FILE.read_text(encoding="utf-8")
PATH, ENCODED = "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"


def changed(**fields: Any) -> dict[str, Any]:
    """The description with other fields, as the key's value."""
    return {ENCODED: json.dumps({**json.loads(TEXT), **fields})}


def with_layer(number: int, attention: Any = None, ffn: Any = None) -> dict[str, Any]:
    """The description with another layer."""
    blocks = json.loads(TEXT)["block_configs"]
    if attention is not None:
        blocks[number]["attention"] = attention
    if ffn is not None:
        blocks[number]["ffn"] = ffn
    return changed(block_configs=blocks)


@pytest.mark.parametrize(
    "keys",
    [{PATH: str(FILE)}, {ENCODED: TEXT}, {ENCODED: base64.b64encode(TEXT.encode()).decode()}, {PATH: "absent", ENCODED: TEXT}],
    ids=["file", "text", "base64", "text-wins"],
)
def test_layers_are_read(build: Any, keys: dict[str, Any]) -> None:
    blocks = build(keys).config.model.blocks
    assert blocks.mixing == ("attention", "none", "linear", "attention")
    assert blocks.feed_forward == ("mlp", "mlp", "none", "linear")
    assert blocks.ffn_hidden_size == (256, 512, 0, 0)


def test_width_is_two_thirds_of_the_multiple_rounded_up_to_256(build: Any) -> None:
    sizes = with_layer(0, ffn={"ffn_mult": 24.0}) | {}
    assert build(sizes).config.model.blocks.ffn_hidden_size[0] == 512
    sizes = with_layer(0, ffn={"ffn_mult": 24.1})
    assert build(sizes).config.model.blocks.ffn_hidden_size[0] == 768
    assert build(with_layer(0, ffn={"ffn_hidden_size": 48})).config.model.blocks.ffn_hidden_size[0] == 48


def test_groups_and_scaling_agree_with_keys(build: Any) -> None:
    blocks = json.loads(TEXT)["block_configs"]
    for number in (0, 3):
        blocks[number]["attention"] = {"n_heads_in_group": 2}
    keys = changed(block_configs=blocks, rope_scaling={"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0})
    grouped = {"group_query_attention": True, "num_query_groups": 2, "use_rope_scaling": True, "rope_scaling_factor": 4.0}
    assert build({**keys, **grouped}).config.model.attention.num_query_groups == 2


def test_all_differences_are_in_one_message(problems_of: Any) -> None:
    keys = changed(hidden_act="gelu", hidden_size=64, rope_theta=5e5, tie_word_embeddings=True, rope_scaling={"factor": 8.0})
    (problem,) = problems_of({**keys, "normalization": "LayerNorm", "swiglu": False})
    for part in (
        "hidden_act is gelu, and must be silu",
        "hidden_size is 32, and hidden_size is 64",
        "rotary_base is 10000",
        "untie_embeddings_and_output_weights is true, and not tie_word_embeddings is false",
        "use_rope_scaling is false, and having rope_scaling is true",
        "normalization is LayerNorm, and must be RMSNorm",
        "swiglu is false, and must be true",
    ):
        assert part in problem


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({PATH: "absent.json"}, "it cannot be read"),
        ({ENCODED: "{nothing"}, "it is no JSON"),
        ({ENCODED: "[1]"}, "a JSON object with a list block_configs"),
        ({**changed(), "num_layers": 6}, "block_configs describes 4 layers and num_layers is 6"),
        (with_layer(1, attention={"no_op": True, "replace_with_linear": True}), "layer 1: attention is both no_op and"),
        (with_layer(0, ffn={}), "layer 0: ffn needs ffn_mult or ffn_hidden_size"),
        (with_layer(0, ffn={"ffn_mult": -1}), "layer 0: ffn: ffn_mult -1 is no size"),
        (
            with_layer(0, attention={"window_length": 8}),
            "attention has window_length, which this engine does not have",
        ),
        (with_layer(0, attention={"n_heads_in_group": 2}), "has layers with 2, 4 query groups, the keys say 4"),
        (with_layer(0, attention={"n_heads_in_group": 3}), "1.33333"),
        ({**changed(), "num_experts": 4}, "set num_experts: null"),
        ({**changed(), "multi_latent_attention": True}, "set multi_latent_attention: false"),
        ({**changed(), "model_type": "mamba"}, "set model_type: gpt"),
        ({**changed(), "position_embedding_type": "none"}, "position_embedding_type is none, and must be rope"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    problems = problems_of(keys)
    assert any(message in problem for problem in problems), problems


def test_widths_are_divided_by_ranks(problems_of: Any) -> None:
    keys = {**with_layer(0, ffn={"ffn_hidden_size": 49}), "tensor_model_parallel_size": 2}
    assert any("has feed-forward widths [49] that" in problem for problem in problems_of(keys, world_size=2))
