"""Adapters compute what the peft library computes: recorded logits, gradients and merged weights, and DoRA beside it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from primus.engine.checkpoint.hf.read import model_in
from primus.engine.checkpoint.hf.weights import HFWeights
from primus.engine.config import PEFTConfig
from primus.engine.config.peft import DEFAULT_TARGETS, InitMethod
from primus.engine.kernels.low_rank import merged
from primus.engine.model.builder import build_model, model_place
from primus.engine.model.gpt import GPTModel
from primus.engine.model.linears import ColumnParallelLinear
from primus.engine.model.parameter import normal
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import global_parameters, weight_shards
from primus.engine.peft.adapter import LoRA, division_of, initial_rule
from primus.engine.peft.apply import apply_peft, without_adapters
from primus.engine.peft.linears import adapted, magnitude_sharding, row_squares

DATA = Path(__file__).parents[2] / "data" / "hf"
PARTS = {
    "self_attn.q_proj": "self_attention.linear_qkv.adapter.adapter_q",
    "self_attn.k_proj": "self_attention.linear_qkv.adapter.adapter_k",
    "self_attn.v_proj": "self_attention.linear_qkv.adapter.adapter_v",
    "self_attn.o_proj": "self_attention.linear_proj.adapter",
    "mlp.gate_proj": "mlp.linear_fc1.adapter.adapter_gate",
    "mlp.up_proj": "mlp.linear_fc1.adapter.adapter_up",
    "mlp.down_proj": "mlp.linear_fc2.adapter",
}


def ours(theirs: str) -> str:
    """Return our name of a matrix of an adapter of theirs."""
    _, _, rest = theirs.replace(".default", "").partition("model.layers.")
    number, _, rest = rest.partition(".")
    part, _, matrix = rest.rpartition(".lora_")
    return f"decoder.layers.{number}.{PARTS[part]}.linear_{'in' if matrix[0] == 'A' else 'out'}.weight"


@pytest.fixture(scope="module")
def model() -> GPTModel:
    family, config = model_in(DATA / "llama")
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (built,) = build_model(config, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    shards = weight_shards(global_parameters([built]), mesh)
    HFWeights(DATA / "llama", family, config, {name: each.global_shape for name, each in shards.items()}).load(shards)
    peft = PEFTConfig(scheme="canonical_lora", target_modules=DEFAULT_TARGETS["canonical_lora"], dim=4, alpha=8.0)
    place = model_place(config, mesh=mesh, dtype=torch.float32, device="cpu", streams=streams)
    apply_peft([built], peft, config, place=place, mesh=mesh, seed=1)
    with torch.no_grad():
        for name, value in load_file(DATA / "lora_llama" / "adapter_model.safetensors").items():
            built.get_parameter(ours(name)).copy_(value)
    return built


def test_logits_and_gradients_are_the_recorded_ones(model: GPTModel) -> None:
    reference = load_file(DATA / "lora_llama" / "reference.safetensors")
    tokens = reference["input_ids"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    torch.testing.assert_close(model(tokens, positions), reference["logits_adapter"], rtol=1e-4, atol=1e-4)
    mask = torch.ones(tokens.shape)
    mask[:, -1] = 0.0
    loss = model(tokens, positions, labels_BS=tokens.roll(-1, 1), loss_mask_BS=mask) / mask.sum()
    loss.backward()
    recorded = {ours(name[2:]): value for name, value in reference.items() if name.startswith("g/")}
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == recorded.keys()
    for name, value in recorded.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_without_adapters_the_base_answers(model: GPTModel) -> None:
    recorded = load_file(DATA / "llama" / "reference.safetensors")
    tokens = recorded["input_ids"]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    with torch.no_grad(), without_adapters([model]):
        torch.testing.assert_close(model(tokens, positions), recorded["logits"], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert not torch.allclose(model(tokens, positions), recorded["logits"], rtol=1e-2, atol=1e-2)


def test_merged_weights_are_the_recorded_ones() -> None:
    recorded = load_file(DATA / "lora_llama" / "reference.safetensors")
    adapters = load_file(DATA / "lora_llama" / "adapter_model.safetensors")
    base = load_file(DATA / "llama" / "model.safetensors")
    names = [name.removeprefix("merged/").removesuffix(".weight") for name in recorded if name.startswith("merged/")]
    assert names
    for name in names:
        a, b = (adapters[f"base_model.model.{name}.lora_{each}.weight"] for each in "AB")
        torch.testing.assert_close(merged(base[f"{name}.weight"], a, b, scale=2.0), recorded[f"merged/{name}.weight"])


def test_a_merged_weight_is_rounded_once() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, a, b = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((64, 48), (3, 48), (64, 3)))
    exact = weight.double() + 0.01 * (b.double() @ a.double())
    assert torch.equal(merged(weight, a, b, scale=0.01), exact.bfloat16())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dora_is_that_of_the_peft_library(dropout: float) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["0"], use_dora=True, init_lora_weights=False, lora_dropout=dropout
    )
    torch.manual_seed(4)
    theirs = peft.get_peft_model(nn.Sequential(nn.Linear(12, 10)).double(), config)
    layer = theirs.base_model.model[0]
    place = model_place(
        model_in(DATA / "llama")[1], mesh=single_mesh(), dtype=torch.float64, device="cpu", streams=streams_of_one()
    )
    base = ColumnParallelLinear(place, 12, 10, bias=True, initial=normal(1.0))
    own = PEFTConfig(scheme="dora", dim=3, alpha=6.0, dropout=dropout)
    adapter = LoRA(place, division_of(base.weight, place), own, magnitude=magnitude_sharding(base.weight, place))
    linear = adapted(place, base.requires_grad_(False), adapter, own)
    a, b, m = adapter.linear_in.weight, adapter.linear_out.weight, adapter.weight_magnitude
    theirs_a, theirs_b = layer.lora_A.default.weight, layer.lora_B.default.weight
    theirs_m = layer.lora_magnitude_vector.default.weight
    with torch.no_grad():
        base.weight.copy_(layer.base_layer.weight)
        base.bias.copy_(layer.base_layer.bias)
        a.copy_(theirs_a)
        b.copy_(theirs_b)
        m.copy_(theirs_m * 1.1)
        theirs_m.mul_(1.1)
    x = torch.randn(4, 2, 12, dtype=torch.float64)
    results = []
    for call in (linear, theirs):
        torch.manual_seed(9)  # both drop the same values
        y = call(x)
        y.square().sum().backward()
        results.append(y.detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    for mine, other in ((a, theirs_a), (b, theirs_b), (m, theirs_m)):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-11, atol=1e-11)
    if not dropout:
        whole = merged(base.weight, a.detach(), b.detach(), scale=2.0, magnitude=m.detach())
        torch.testing.assert_close(x @ whole.t() + base.bias, results[0], rtol=1e-12, atol=1e-12)


def test_a_length_moves_in_small_steps_in_half_precision() -> None:
    place = model_place(
        model_in(DATA / "llama")[1], mesh=single_mesh(), dtype=torch.bfloat16, device="cpu", streams=streams_of_one()
    )
    base = ColumnParallelLinear(place, 16, 512, bias=False, initial=normal(1.0))
    peft = PEFTConfig(scheme="dora", dim=2, alpha=2.0)
    adapter = LoRA(place, division_of(base.weight, place), peft, magnitude=magnitude_sharding(base.weight, place))
    assert adapter.weight_magnitude.dtype == torch.float32
    linear = adapted(place, base.requires_grad_(False), adapter, peft)
    with torch.no_grad():
        base.weight.normal_(generator=torch.Generator().manual_seed(1))
        adapter.linear_out.weight.zero_()
        adapter.linear_in.weight.zero_()
        adapter.weight_magnitude.copy_(base.weight.float().norm(dim=1) * 1.0035)
        x = torch.randn(64, 1, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
        longer = linear(x).float().norm() / base(x).float().norm()
    assert longer.item() == pytest.approx(1.0035, abs=1.5e-3)
    torch.testing.assert_close(row_squares(base.weight), base.weight.float().square().sum(1))


def streams_of_one() -> RandomStreams:
    return RandomStreams(1, single_mesh().coordinates)


@pytest.mark.parametrize(
    ("method", "spread", "most"),
    [
        ("xavier", (2 / (50 + 4000)) ** 0.5, float("inf")),
        ("kaiming", (1 / (3 * 4000)) ** 0.5, 4000**-0.5),
        ("normal", 0.2, float("inf")),
        ("zero", 0.0, 0.0),
    ],
)
def test_a_matrix_begins_as_its_method_says(method: InitMethod, spread: float, most: float) -> None:
    whole = torch.empty(50, 4000)
    initial_rule(method)(whole, torch.Generator().manual_seed(1))
    assert whole.std().item() == pytest.approx(spread, rel=0.01)
    assert abs(whole.mean().item()) <= spread / 50
    assert whole.abs().max() <= most
