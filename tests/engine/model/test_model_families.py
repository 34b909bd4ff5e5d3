"""A model of every family, with all that its preset says but the sizes: every weight matters, and gradients are slopes."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.core.experiment import load_experiment, load_presets
from primus.engine.config import ConfigContainer
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.model.mtp import Ahead
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

FAMILIES = [
    *("llama3.1_8B", "qwen3_tiny", "mixtral_8x7B_v0.1", "grok2", "llama4_17B16E", "llama4_17B128E", "qwen3_30B_A3B"),
    *("glm4_7", "gpt_oss_20B", "minimax_m2.5", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "lfm2_8B_A1B"),
    *("mamba_370M", "zebra_llama_1B", "zebra_llama_300M_mamba_hybrid", "zebra_llama_300M_gdn_hybrid"),
    *("zebra_llama_300M_kda_pure", "zebra_llama_1B_kda_pure"),
]
B, S, V = 3, 12, 48

SIZES = {"num_layers": 4, "hidden_size": 32, "ffn_hidden_size": 48, "num_attention_heads": 4}
SMALLER = {
    "num_query_groups": 2,
    "kv_channels": 12,
    "num_experts": 4,
    "moe_ffn_hidden_size": 20,
    "moe_shared_expert_intermediate_size": 24,
    "moe_router_num_groups": 2,
    "moe_router_group_topk": 1,
    "expert_model_parallel_size": 1,
    "q_lora_rank": 14,
    "kv_lora_rank": 10,
    "qk_head_dim": 6,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 5,
}
"""Sizes of what a family may have; others leave them out."""


def shrunk(values: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides that make a preset small and keep its parts."""
    kept = {key: size for key, size in SMALLER.items() if values[key] is not None}
    if values["model_type"] == "mamba":
        kept |= {"mamba_state_dim": 6, "mamba_head_dim": 8, "mamba_num_groups": 2}
    if values["experimental_attention_variant"] is not None:
        kept |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 8}
    if values["hybrid_override_pattern"] is not None:
        kept["hybrid_override_pattern"] = "*-M-"
    if values["lfm_layer_types"] is not None:
        kept["lfm_layer_types"] = ["conv", "full_attention", "conv", "conv"]
    if isinstance(values["moe_layer_freq"], str):
        kept["moe_layer_freq"] = [0, 1, 1, 1]
    kept["moe_router_topk"] = min(2, values["moe_router_topk"])
    return {**SIZES, **kept}


@pytest.mark.parametrize("preset", FAMILIES)
def test_gradients_of_a_small_model_are_the_slopes_of_its_loss(preset: str, tmp_path: Path) -> None:
    model = build(container(preset, tmp_path))
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, V, (B, S), generator=generator)
    loss = loss_of(model, tokens)
    loss.backward()
    depths = 0 if model.mtp is None else len(model.mtp.layers)
    assert loss.item() == pytest.approx((1 + depths) * math.log(V), rel=0.05)
    named = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in named.items()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []
    # So short that no token changes its experts.
    step = 1e-8
    for kind, alike in kinds(named).items():
        ways = {name: torch.randn(named[name].shape, generator=generator, dtype=torch.float64) for name in alike}
        ahead, back = (moved(model, {name: way * sign * step for name, way in ways.items()}, tokens) for sign in (1, -1))
        slope = sum((gradients[name] * way).sum().item() for name, way in ways.items())
        assert (ahead - back) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-6), kind


def kinds(names: Iterable[str]) -> dict[str, list[str]]:
    """Put the parameters together that differ in their layer alone."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(re.sub(r"\.\d+\.", ".*.", name), []).append(name)
    return found


@torch.no_grad()
def moved(model: GPTModel, shifts: dict[str, torch.Tensor], tokens: torch.Tensor) -> float:
    """Return the loss where some parameters are a little elsewhere."""
    for name, shift in shifts.items():
        model.get_parameter(name).add_(shift)
    loss = loss_of(model, tokens).item()
    for name, shift in shifts.items():
        model.get_parameter(name).sub_(shift)
    return loss


def loss_of(model: GPTModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean loss, those of tokens further ahead added."""
    positions, ones = torch.arange(S).expand(B, -1), torch.ones(B, S, dtype=torch.float64)
    depths = range(1, 1 + (0 if model.mtp is None else len(model.mtp.layers)))
    ahead = [Ahead(tokens.roll(-k, 1), positions, tokens.roll(-k - 1, 1), ones) for k in depths]
    total: torch.Tensor = model(tokens, positions, None, tokens.roll(-1, 1), ones, ahead=ahead)
    return total.sum() / (B * S)


def container(preset: str, folder: Path) -> ConfigContainer:
    """Return the container of a preset made small."""
    values = {name: value.value for name, value in load_presets("megatron", "pre_trainer.yaml", f"{preset}.yaml").items()}
    overrides = {
        **shrunk(values),
        "mock_data": True,
        "vocab_size": V - 1,
        "make_vocab_size_divisible_by": 1,
        "tokenizer_type": "NullTokenizer",
        "seq_length": S,
        "max_position_embeddings": S,
        "bf16": False,
    }
    file = folder / "experiment.yaml"
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": f"{preset}.yaml", "overrides": overrides}
    file.write_text(yaml.safe_dump({"modules": {"pre_trainer": module}}))
    experiment = load_experiment(file, [], {})
    return MegatronArgBuilder(experiment, experiment.modules["pre_trainer"], 1, folder).build().config


def build(config: ConfigContainer) -> GPTModel:
    """Return the model in float64, as it is evaluated: without the losses on the load."""
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    model_config = replace(config.model, vocab_size=V)
    (model,) = build_model(model_config, mesh=mesh, dtype=torch.float64, device="cpu", seed=1, streams=streams)
    return model.eval()
