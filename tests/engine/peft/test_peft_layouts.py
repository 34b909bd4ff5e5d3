"""Adapters divided over tensor-parallel ranks equal one process in float64: losses and gradients at 1e-12."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from divided import BASE, batch, build, grouped, summed, whole
from ranks import run_ranks
from torch import Tensor, nn

from primus.engine.checkpoint.merged import MergedSource
from primus.engine.config import DistConfig, PEFTConfig
from primus.engine.config.attention import MLAConfig
from primus.engine.config.blocks import BlocksConfig
from primus.engine.config.delta import DeltaConfig
from primus.engine.config.model import ModelConfig, ParallelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.recompute import RecomputeConfig
from primus.engine.config.ssm import MambaConfig
from primus.engine.kernels.activation import ACTIVATIONS
from primus.engine.kernels.expert_mlp import expert_mlp_reference
from primus.engine.model.builder import model_place
from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe.router import Router
from primus.engine.model.size import parameter_count
from primus.engine.parallel.buckets import Bucket
from primus.engine.parallel.mesh import Group, Mesh, Part, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Shards, weight_shards
from primus.engine.parallel.weights import WholeWeights
from primus.engine.peft.apply import apply_peft, sizes
from primus.engine.peft.magnitude import set_magnitudes
from primus.errors import ConfigError

DENSE = replace(BASE, attention=grouped(2, add_qkv_bias=True), add_bias_linear=True)
MODELS: dict[str, ModelConfig] = {
    "dense": DENSE,
    "one-group": replace(BASE, attention=grouped(1)),
    "gelu": replace(BASE, activation="gelu"),
    "mla": replace(
        BASE,
        attention=grouped(
            4,
            qk_norm="model",
            mla=MLAConfig(enabled=True, q_lora_rank=8, kv_lora_rank=10, qk_head_dim=6, qk_pos_emb_head_dim=4, v_head_dim=6),
        ),
    ),
    "moe": replace(
        BASE,
        moe=MoEConfig(
            num_experts=4, layers=(1,), ffn_hidden_size=12, shared_expert_intermediate_size=8, token_dispatcher="alltoall"
        ),
        mtp=MTPConfig(num_layers=1),
    ),
    "mamba": replace(
        BASE,
        num_layers=3,
        blocks=BlocksConfig(mixing=("mamba", "attention", "short_conv"), feed_forward=("none", "mlp", "mlp")),
        mamba=MambaConfig(num_heads=4, head_dim=8, num_groups=2, state_dim=4),
    ),
    "delta": replace(
        BASE,
        num_layers=3,
        blocks=BlocksConfig(mixing=("gated_delta", "attention", "kimi_delta")),
        delta=DeltaConfig(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=4),
    ),
}


def adapted(config: ModelConfig, peft: PEFTConfig, mesh: Mesh) -> GPTModel:
    streams = RandomStreams(5, mesh.coordinates)
    model = build(config, mesh, streams=streams)
    place = model_place(config, mesh=mesh, dtype=torch.float64, device="cpu", streams=streams)
    apply_peft([model], peft, config, place=place, mesh=mesh, seed=5)
    set_magnitudes([model], weight_shards(model.named_parameters(), mesh), mesh)
    return model


def run(config: ModelConfig, peft: PEFTConfig, mesh: Mesh) -> dict[str, Tensor]:
    """Return the loss and the whole gradients of what is trained, by name."""
    model = adapted(config, peft, mesh)
    tokens, positions, labels, mask = batch(config)
    loss = model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
    loss.backward()
    grads = {name: summed(p, mesh) for name, p in model.named_parameters() if p.requires_grad}
    return {"loss": loss.detach(), **whole(grads, model, mesh)}


def check_equal(rank: int, cases: list[tuple[ModelConfig, PEFTConfig]], expected: list[dict[str, Tensor]]) -> None:
    mesh = build_mesh(cases[0][0].parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    for (config, peft), wanted in zip(cases, expected, strict=True):
        actual = run(config, peft, mesh)
        assert actual.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


ALL = {"lora_B_init_method": "normal", "dim": 3, "alpha": 4.0, "target_modules": ()}
SCHEMES = {
    "lora": PEFTConfig(**ALL),  # type: ignore[arg-type]
    "canonical": PEFTConfig(scheme="canonical_lora", **ALL),  # type: ignore[arg-type]
    "some parts": PEFTConfig(scheme="canonical_lora", **{**ALL, "target_modules": ("linear_v", "up_proj")}),  # type: ignore[arg-type]
    "dora": PEFTConfig(scheme="dora", **ALL),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["tp", "sp"])
def test_adapters_of_every_scheme_and_model_equal_one_process(sequence_parallel: bool) -> None:
    names = [name for name in MODELS if name != "moe"]
    parallel = ParallelConfig(tensor_model_parallel_size=2, sequence_parallel=sequence_parallel)
    plain = [(MODELS[name], SCHEMES[scheme]) for name in names for scheme in SCHEMES if name != "mla" or "parts" not in scheme]
    expected = [run(config, peft, single_mesh()) for config, peft in plain]
    run_ranks(check_equal, 2, [(replace(config, parallel=parallel), peft) for config, peft in plain], expected)


def first_loss(config: ModelConfig, peft: PEFTConfig | None, mesh: Mesh) -> Tensor:
    model = build(config, mesh) if peft is None else adapted(config, peft, mesh)
    tokens, positions, labels, mask = batch(config)
    with torch.no_grad():
        loss: Tensor = model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
    return loss


@pytest.mark.parametrize("scheme", ["lora", "canonical_lora", "dora"])
def test_the_first_step_is_that_of_the_base(scheme: str) -> None:
    peft = PEFTConfig(scheme=scheme, dim=3, target_modules=())  # type: ignore[arg-type]
    assert torch.equal(first_loss(DENSE, peft, single_mesh()), first_loss(DENSE, None, single_mesh()))


def first_values(rank: int, config: ModelConfig, peft: PEFTConfig) -> dict[str, Tensor]:
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    model = adapted(config, peft, mesh)
    return whole({name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, model, mesh)


def test_first_values_do_not_know_the_layout() -> None:
    peft = PEFTConfig(dim=4, target_modules=(), lora_B_init_method="kaiming")
    one = dict(adapted(DENSE, peft, single_mesh()).named_parameters())
    divided = replace(DENSE, parallel=ParallelConfig(tensor_model_parallel_size=2))
    for name, value in run_ranks(first_values, 2, divided, peft)[0].items():
        assert torch.equal(value, one[name]), name
    # Xavier-normal by the sizes of the whole matrix: sqrt(2 / (rows + columns)).
    wide = torch.cat([p.flatten() for name, p in one.items() if "linear_fc2.adapter.linear_in" in name])
    assert wide.std().item() == pytest.approx((2 / (4 + 24)) ** 0.5, rel=0.2)


@pytest.mark.parametrize("experts", [False, True], ids=["linears", "experts"])
@pytest.mark.parametrize("position", ["pre", "post"])
def test_dropout_acts_in_training_alone_and_is_replayed(position: str, experts: bool) -> None:
    plain_one = replace(MODELS["moe"], mtp=MTPConfig()) if experts else DENSE
    some = {**ALL, "target_modules": ("*.mlp.experts.*",)} if experts else ALL
    peft = PEFTConfig(**{**some, "dropout": 0.4, "dropout_position": position})  # type: ignore[arg-type]
    config = replace(plain_one, recompute=RecomputeConfig(granularity="full", method="uniform", num_layers=1))
    kept, again = adapted(plain_one, peft, single_mesh()), adapted(config, peft, single_mesh())
    tokens, positions, labels, mask = batch(plain_one)
    grads = []
    for model in (kept, again):
        torch.manual_seed(3)
        loss = model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
        loss.backward()
        grads.append([loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    plain = first_loss(plain_one, PEFTConfig(**some), single_mesh())  # type: ignore[arg-type]
    assert not torch.allclose(grads[0][0], plain)
    # The next microbatch loses other values.
    torch.manual_seed(4)
    assert not torch.allclose(kept(tokens, positions, labels_BS=labels, loss_mask_BS=mask), grads[0][0])
    kept.eval()
    with torch.no_grad():
        torch.testing.assert_close(kept(tokens, positions, labels_BS=labels, loss_mask_BS=mask), plain, rtol=1e-13, atol=0.0)


def dropped_places(rank: int, config: ModelConfig, peft: PEFTConfig) -> dict[str, Tensor]:
    """Return what linears leave of ones where they drop values."""
    model = adapted(config, peft, build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu")))
    torch.manual_seed(3)
    drops = {name: m for name, m in model.named_modules() if name.rpartition(".")[2] in ("_drop_in", "_drop_out")}
    results = {name: drop(torch.ones(64)) for name, drop in drops.items()}
    return {name: left for name, left in results.items() if left is not None}


@pytest.mark.parametrize("slices", [False, True], ids=["tp", "sp"])
def test_ranks_drop_alike_what_all_have_and_apart_what_each_has_of_its_own(slices: bool) -> None:
    config = replace(DENSE, parallel=ParallelConfig(tensor_model_parallel_size=2, sequence_parallel=slices))
    for position, apart in (("pre", {"linear_proj", "linear_fc2"}), ("post", {"linear_qkv", "linear_fc1"})):
        peft = PEFTConfig(**{**ALL, "dropout": 0.5, "dropout_position": position})  # type: ignore[arg-type]
        one, other = run_ranks(dropped_places, 2, config, peft)
        assert len(one) == 8
        differ = {name.split(".")[-2] for name in one if not torch.equal(one[name], other[name])}
        assert differ == ({"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"} if slices else apart)


class Held:
    """A bucket of one parameter."""

    def __init__(self, param: nn.Parameter) -> None:
        self.places = (SimpleNamespace(param=param),)


class Waits(WholeWeights):
    """Notes whose updates a forward waits for."""

    def __init__(self) -> None:
        super().__init__(overlaps=True, waits_for_start=False)
        self.awaited: set[nn.Parameter] = set()

    def _await_all(self, buckets: tuple[Any, ...], *_: object) -> None:
        self.awaited |= {place.param for bucket in buckets for place in bucket.places}


@pytest.mark.parametrize("scheme", ["lora", "canonical", "dora"])
@pytest.mark.parametrize("name", MODELS)
def test_a_forward_waits_for_the_update_of_every_weight(name: str, scheme: str) -> None:
    """With `overlap_param_gather` the updates of other ranks are still on their way when it begins."""
    config = replace(MODELS[name], mtp=MTPConfig())
    model = adapted(config, SCHEMES[scheme], single_mesh())
    weights = Waits()
    for parameter in model.parameters():
        weights.adopt(cast(Bucket, Held(parameter)), Group((0, 1), 0))
    weights.watch(model.modules())
    tokens, positions, labels, mask = batch(config)
    model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
    assert [name for name, parameter in model.named_parameters() if parameter not in weights.awaited] == []


class Stored:
    """A checkpoint of whole tensors."""

    is_shared = True

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.common = tensors, dict[str, Any]()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: tensor.dtype for name, tensor in self.tensors.items()}

    def load(self, tensors: dict[str, Shards]) -> None:
        for name, shards in tensors.items():
            for chunk in shards.chunks:
                place = tuple(slice(low, low + size) for low, size in zip(chunk.offsets, chunk.data.shape, strict=True))
                chunk.data.copy_(self.tensors[name].detach()[place])

    def rng(self, mesh: Mesh, data_rank: int) -> None:
        return None


GATED = replace(BASE, attention=grouped(2, output_gate=True))
OWN = {"share_expert_adapters": False, "normalize_moe_lora": True}
MERGED: dict[str, tuple[ModelConfig, PEFTConfig]] = {
    **{f"dense {scheme}": (DENSE, peft) for scheme, peft in SCHEMES.items()},
    "gelu": (MODELS["gelu"], SCHEMES["canonical"]),
    "output gate": (GATED, SCHEMES["some parts"]),
    "shared experts": (replace(MODELS["moe"], mtp=MTPConfig()), SCHEMES["canonical"]),
    "experts with lengths": (replace(MODELS["moe"], mtp=MTPConfig()), SCHEMES["dora"]),
    "own experts": (replace(MODELS["moe"], mtp=MTPConfig()), PEFTConfig(**{**ALL, **OWN, "dim": 4})),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", MERGED)
def test_a_merged_model_is_the_adapted_one(case: str) -> None:
    config, peft = MERGED[case]
    tuned, plain = adapted(config, peft, single_mesh()), build(config, single_mesh())
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1.1)
    tensors = dict(tuned.named_parameters())
    base, adapters = ({n: p for n, p in tensors.items() if (".adapter." in n) == own} for own in (False, True))
    source = MergedSource(Stored(base), Stored(adapters), peft, config)
    source.load(weight_shards(plain.named_parameters(), single_mesh()))
    tokens, positions, labels, mask = batch(config)
    one, other = (model(tokens, positions, labels_BS=labels, loss_mask_BS=mask) for model in (tuned, plain))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0.0)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        adapted(DENSE, PEFTConfig(dim=0, target_modules=("linear_qvk",)), single_mesh())
    assert len(raised.value.problems) == 2


def test_own_adapters_of_experts_need_whole_matrices() -> None:
    config, own = replace(MODELS["moe"], mtp=MTPConfig()), replace(PEFTConfig(target_modules=()), share_expert_adapters=False)
    place = model_place(
        config, mesh=single_mesh(), dtype=torch.float64, device="cpu", streams=RandomStreams(5, single_mesh().coordinates)
    )
    with pytest.raises(ConfigError, match="expert_tensor_parallel_size is 2 and must be 1"):
        apply_peft(
            [build(config, single_mesh())], own, config, place=replace(place, etp=Part(0, 2)), mesh=single_mesh(), seed=5
        )


def test_experts_with_lengths_are_the_formula() -> None:
    """Rows of W + s B A have learned lengths; the norms that these are divided by pass no gradient."""
    config, peft = replace(MODELS["moe"], mtp=MTPConfig()), PEFTConfig(**{**ALL, "scheme": "dora"})  # type: ignore[arg-type]
    experts = adapted(config, peft, single_mesh()).get_submodule("decoder.layers.1.mlp.experts")
    x, p = torch.randn(5, config.hidden_size, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    weights, learned = [], dict(experts.named_parameters())
    for last in ("linear_fc1", "linear_fc2"):
        w, a, b, m = (
            learned[f"{last}.{name}"]
            for name in ("weight", "adapter.linear_in.weight", "adapter.linear_out.weight", "adapter.weight_magnitude")
        )
        m.data.mul_(1.0 + 0.1 * torch.rand_like(m))
        whole = w + peft.alpha / peft.dim * b @ a
        weights.append((m / whole.detach().norm(dim=-1)).unsqueeze(-1) * whole)
    counts = [2, 0, 1, 2]
    theirs = expert_mlp_reference(x, p, weights[0], weights[1], counts, ACTIVATIONS[config.activation])
    wanted = [p for p in learned.values() if p.requires_grad]
    results = [[y, *torch.autograd.grad(y.square().sum(), wanted)] for y in (experts(x, p, counts), theirs)]
    assert len(wanted) == 6
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def test_a_router_bias_stays_where_it_is() -> None:
    moe = replace(MODELS["moe"].moe, router_enable_expert_bias=True, router_score_function="sigmoid")
    model = adapted(replace(MODELS["moe"], moe=moe, mtp=MTPConfig()), PEFTConfig(dim=2), single_mesh())
    tokens, positions, labels, mask = batch(DENSE)
    model(tokens, positions, labels_BS=labels, loss_mask_BS=mask).backward()
    routers = [module for module in model.modules() if isinstance(module, Router)]
    assert [router.tokens_per_expert for router in routers] == [None]


def test_the_rank_of_experts_can_be_shared_out_over_the_experts_of_a_token() -> None:
    peft = PEFTConfig(target_modules=("linear_fc1",), dim=6, normalize_moe_lora=True)
    model = adapted(MODELS["moe"], peft, single_mesh())
    layer = "decoder.layers.1.mlp"
    assert model.get_parameter(f"{layer}.experts.linear_fc1.adapter.linear_in.weight").shape == (3, 16)
    assert model.get_parameter(f"{layer}.shared_experts.linear_fc1.adapter.linear_in.weight").shape == (6, 16)


def test_the_log_says_how_much_is_trained() -> None:
    model = adapted(DENSE, PEFTConfig(target_modules=("linear_proj",), dim=2), single_mesh())
    counted = sizes([model], DENSE, single_mesh())
    assert counted.trainable == 2 * 2 * (24 + 16)
    assert counted.total == counted.trainable + parameter_count(DENSE).total
    assert str(counted).startswith(f"160 of {counted.total:,d} parameters are trained (")
