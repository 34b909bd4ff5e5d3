"""First values: distributions, zeros where zeros belong, independence of anything but the seed and the name."""

import math
from dataclasses import replace

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from primus.engine.config import DistConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.initialise import generator_for, zero_padding
from primus.engine.parallel.mesh import build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Sharding
from primus.errors import ConfigError

CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=64,
    ffn_hidden_size=128,
    seq_length=16,
    vocab_size=200,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=16, qk_norm="model", add_qkv_bias=True),
    position=PositionConfig(type="learned_absolute", max_position_embeddings=32),
    normalization="LayerNorm",
    add_bias_linear=True,
    init=InitConfig(method_std=0.05),
)


def weights(config: ModelConfig, *, seed: int = 7, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    mesh = single_mesh()
    streams = RandomStreams(seed, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=seed, streams=streams)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_matrices_are_normal_and_deep_ones_shrink_with_depth() -> None:
    for name, weight in weights(CONFIG).items():
        if weight.dim() < 2:
            continue
        deep = "linear_proj" in name or "linear_fc2" in name
        expected = 0.05 / math.sqrt(2 * CONFIG.num_layers) if deep else 0.05
        real = weight[: CONFIG.vocab_size]
        assert float(real.std()) == pytest.approx(expected, rel=0.08), name
        assert abs(float(real.mean())) < 0.1 * expected, name


def test_gains_are_one_biases_and_padding_zero() -> None:
    for name, weight in weights(CONFIG).items():
        if "layernorm.weight" in name:
            assert torch.all(weight == 1), name
        elif name.endswith("bias"):
            assert torch.all(weight == 0), name
    embedding = weights(CONFIG)["embedding.word_embeddings.weight"]
    assert embedding.shape[0] == 256
    assert torch.all(embedding[200:] == 0)


def test_padding_is_zero_also_where_nothing_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **kind: empty(*size, **kind).fill_(float("nan")))
    found = weights(replace(CONFIG, init=InitConfig(perform=False)))
    for name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        assert torch.all(found[name][:200].isnan()), name
        assert torch.all(found[name][200:] == 0), name


def _padded_rows(rank: int, tp: int) -> tuple[int, int]:
    """Rows of this rank, and how many of them are zero from the end."""
    mesh = build_mesh(ParallelConfig(tensor_model_parallel_size=tp), DistConfig(), torch.device("cpu"))
    weight = torch.nn.Parameter(torch.ones(8, 2))
    weight.sharding = Sharding(dim=0, valid_rows=5)  # type: ignore[attr-defined]
    module = torch.nn.Module()
    module.weight = weight
    zero_padding([module], tp=mesh.tp)
    return len(weight), int((weight == 0).all(dim=1).sum())


def test_padding_lies_with_the_last_ranks() -> None:
    assert run_ranks(_padded_rows, 2, 2) == [(8, 3), (8, 8)]


def test_gains_stored_minus_one_start_at_zero() -> None:
    for name, weight in weights(replace(CONFIG, layernorm_1p=True)).items():
        assert "layernorm" not in name or torch.all(weight == 0), name


def test_xavier_bounds_every_matrix() -> None:
    for name, weight in weights(replace(CONFIG, init=InitConfig(xavier_uniform=True))).items():
        if weight.dim() == 2:
            rows = CONFIG.vocab_size if weight.shape[0] == 256 and "linear" not in name else weight.shape[0]
            bound = math.sqrt(6 / (rows + weight.shape[1]))
            assert 0.97 * bound < float(weight.abs().max()) <= bound, name


def test_vocabulary_padding_does_not_move_the_draws() -> None:
    narrow, wide = weights(replace(CONFIG, make_vocab_size_divisible_by=8)), weights(CONFIG)
    name = "output_layer.weight"
    assert narrow[name].shape[0] == 200
    assert torch.equal(narrow[name], wide[name][:200])


def test_dtype_changes_rounding_only() -> None:
    wide, narrow = weights(CONFIG), weights(CONFIG, dtype=torch.bfloat16)
    for name, weight in wide.items():
        assert torch.equal(weight.bfloat16(), narrow[name]), name


def test_seed_and_name_decide() -> None:
    first = torch.rand(4, generator=generator_for(1, "a"))
    assert torch.equal(first, torch.rand(4, generator=generator_for(1, "a")))
    assert not torch.equal(first, torch.rand(4, generator=generator_for(2, "a")))
    assert not torch.equal(first, torch.rand(4, generator=generator_for(1, "b")))


def test_perform_false_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus.engine.model.builder.initialise", lambda *_, **__: pytest.fail("drew"))
    assert weights(replace(CONFIG, init=InitConfig(perform=False)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention": AttentionConfig(num_attention_heads=4, num_query_groups=3, kv_channels=16)}, "num_query_groups (3)"),
        ({"ffn_hidden_size": 127}, "ffn_hidden_size (127) is not a multiple of tensor_model_parallel_size (2)"),
    ],
)
def test_widths_that_do_not_divide_are_refused(change: dict[str, object], words: str) -> None:
    from primus.engine.model.builder import _check_divisible

    with pytest.raises(ConfigError) as error:
        _check_divisible(replace(CONFIG, parallel=ParallelConfig(tensor_model_parallel_size=2), **change), 2)
    assert words in str(error.value)
