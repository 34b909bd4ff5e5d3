"""Dense variants equal Megatron-Core: published weights in by name, then logits, per-token losses and every gradient."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

FOLDER = Path(__file__).parents[2] / "data" / "dense"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


def activation_of(keys: dict[str, Any]) -> str:
    named = [name for name in ("swiglu", "squared_relu", "quick_geglu") if keys.get(name)]
    return named[0] if named else "gelu"


def config_of(case: dict[str, Any]) -> ModelConfig:
    k = case["flat_keys"]
    heads = k["num_attention_heads"]
    return ModelConfig(
        num_layers=k["num_layers"],
        hidden_size=k["hidden_size"],
        ffn_hidden_size=k["ffn_hidden_size"],
        seq_length=case["seq_length"],
        vocab_size=k["vocab_size"],
        make_vocab_size_divisible_by=1,
        activation=activation_of(k),
        normalization=k["normalization"],
        norm_epsilon=k["norm_epsilon"],
        add_bias_linear=k["add_bias_linear"],
        tie_embeddings=not k["untie_embeddings_and_output_weights"],
        attention=AttentionConfig(
            sinks=k.get("use_sink_attention", False),
            window=k.get("sink_sliding_window") or None,
            full_layers=tuple(range(1, k["num_layers"], 2)) if k.get("sink_window_even_layers_only") else (),
            num_attention_heads=heads,
            num_query_groups=k["num_query_groups"] if k["group_query_attention"] else heads,
            kv_channels=k.get("kv_channels", k["hidden_size"] // heads),
            add_qkv_bias=k["add_qkv_bias"] or k["add_bias_linear"],
            qk_norm="l2" if k.get("qk_l2_norm") else "model" if k.get("qk_layernorm") else "none",
            softmax_in_fp32=True,
            query_key_layer_scaling=k.get("apply_query_key_layer_scaling", False),
        ),
        position=PositionConfig(
            type=k["position_embedding_type"],
            max_position_embeddings=k["max_position_embeddings"],
            rotary_base=k["rotary_base"],
            rotary_percent=k["rotary_percent"],
            rotary_interleaved=k["rotary_interleaved"],
            interpolation_factor=k.get("rotary_seq_len_interpolation_factor"),
            use_rope_scaling=k.get("use_rope_scaling", False),
            rope_scaling_factor=k.get("rope_scaling_factor", 8.0),
            yarn_scaling_factor=k.get("rotary_scaling_factor", 1.0),
            yarn_original_max_position_embeddings=k.get("original_max_position_embeddings", 4096),
            yarn_mscale=k.get("mscale", 1.0),
            yarn_mscale_all_dim=k.get("mscale_all_dim", 1.0),
            yarn_correction_range_round_to_int=k.get("yarn_correction_range_round_to_int", True),
        ),
        init=InitConfig(perform=False),
    )


def load(case: dict[str, Any], tensors: dict[str, Tensor]) -> GPTModel:
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config_of(case), mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    weights = {name[2:]: value for name, value in tensors.items() if name.startswith("w/")}
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    return model


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = FOLDER / request.param
    return json.loads(path.with_suffix(".json").read_text()), load_file(path.with_suffix(".safetensors"))


def inputs_of(tensors: dict[str, Tensor]) -> dict[str, Tensor | None]:
    blocked = tensors.get("in/attention_mask_blocked")
    return {
        "tokens_BS": tensors["in/input_ids"],
        "position_ids_BS": tensors["in/position_ids"],
        "attention_mask": None if blocked is None else blocked.bool(),
    }


def test_logits_equal_megatron_core(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    description, tensors = case
    logits = load(description, tensors)(**inputs_of(tensors))
    torch.testing.assert_close(logits, tensors["out/logits"], **description["tolerance"]["logits"])


def test_losses_and_gradients_equal_megatron_core(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    description, tensors = case
    model, mask = load(description, tensors), tensors["in/loss_mask"]
    losses = model(**inputs_of(tensors), labels_BS=tensors["in/labels"])
    torch.testing.assert_close(losses, tensors["out/loss_per_token"], **description["tolerance"]["loss"])
    ((losses * mask).sum() / mask.sum()).backward()
    check_gradients(model, description, tensors)


def test_chunked_loss_sum_and_gradients_equal_megatron_core(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    description, tensors = case
    model, mask = load(description, tensors), tensors["in/loss_mask"]
    loss = model(**inputs_of(tensors), labels_BS=tensors["in/labels"], loss_mask_BS=mask) / mask.sum()
    torch.testing.assert_close(loss, tensors["out/loss"], **description["tolerance"]["loss"])
    loss.backward()
    check_gradients(model, description, tensors)


def check_gradients(model: GPTModel, description: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if f"g/{name}" in tensors:
            torch.testing.assert_close(
                parameter.grad, tensors[f"g/{name}"], **description["tolerance"]["grads"], msg=lambda m, n=name: f"{n}: {m}"
            )
        assert float(parameter.grad.norm()) == pytest.approx(description["grad_norms"][name], rel=1e-3, abs=1e-5), name


def test_rotary_angles_equal_megatron_core(case: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
    description, tensors = case
    if "out/rotary_angles" not in tensors:
        return
    model = load(description, tensors)
    cos, sin = model.rotary(description["seq_length"])
    angles, factor = tensors["out/rotary_angles"], description["rotary_cos_sin_multiplier"]
    interleaved = description["flat_keys"]["rotary_interleaved"]
    half = angles[:, ::2] if interleaved else angles[:, : angles.shape[1] // 2]
    torch.testing.assert_close(cos, half.cos() * factor, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sin, half.sin() * factor, rtol=1e-6, atol=1e-6)
