"""A layer: the halves that it has, or a mixer."""

from torch import nn

from primus.engine.config.model import ModelConfig
from primus.engine.config.ssm import SHORT_TAPS
from primus.engine.model.build.attention import attention
from primus.engine.model.build.feed_forward import feed_forward
from primus.engine.model.build.parts import initial, norm, norm_kind
from primus.engine.model.dropout import BiasDropoutAdd
from primus.engine.model.heterogeneous import SquareLinear
from primus.engine.model.layer import Layer, residual_after_norm, residual_before_norm
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.parameter import Place
from primus.engine.model.ssm.conv import CausalConvolution
from primus.engine.model.ssm.delta import GatedDeltaNet
from primus.engine.model.ssm.kimi_delta import KimiDeltaAttention
from primus.engine.model.ssm.layer import MixerLayer
from primus.engine.model.ssm.mixer import MambaMixer
from primus.engine.model.ssm.short import ShortConvolution
from primus.errors import ConfigError

__all__ = ["check_blocks", "layer"]


def layer(config: ModelConfig, place: Place, number: int) -> nn.Module:
    """Return layer `number`."""
    add = BiasDropoutAdd(place, config.hidden_dropout)
    residual = residual_after_norm if config.residual_post_layernorm else residual_before_norm
    if config.blocks.mixing_of(number) == "mamba":
        return MixerLayer(norm=norm(config, place), mixer=_mamba(config, place), add=add, residual=residual)
    self_attention, mlp = _mixing(config, place, number), _feed_forward(config, place, number)
    return Layer(
        input_layernorm=_input_norm(config, place, number),
        self_attention=self_attention,
        pre_mlp_layernorm=None if mlp is None else norm(config, place),
        mlp=mlp,
        add=add,
        residual=residual,
        post_self_attn_layernorm=None if self_attention is None or not config.post_attention_norm else norm(config, place),
        post_mlp_layernorm=None if mlp is None or not config.post_mlp_norm else norm(config, place),
    )


def check_blocks(config: ModelConfig) -> None:
    """Raise ConfigError where layers are not what the model or its division can have."""
    b, m, parallel = config.blocks, config.mamba, config.parallel
    lengths = {len(each) for each in (b.mixing, b.feed_forward, b.ffn_hidden_size) if each}
    if lengths - {config.num_layers}:
        raise ConfigError(f"model.blocks describes {sorted(lengths)} layers and the model has {config.num_layers}")
    if b.runs_along and (parallel.context_parallel_size > 1 or config.pipeline.num_slices > 1):
        raise ConfigError("state-space layers and convolutions need whole sequences: no context parallelism and no slices")
    tp = parallel.tensor_model_parallel_size
    if b.has_mamba and (m.num_heads < 1 or m.num_heads % m.num_groups or m.num_groups % tp):
        raise ConfigError(
            f"model.mamba: {m.num_groups} groups must divide {m.num_heads} heads and be a multiple of "
            f"tensor_model_parallel_size ({tp})"
        )


def _input_norm(config: ModelConfig, place: Place, number: int) -> nn.Module | None:
    match config.blocks.mixing_of(number):
        case "none":
            return None
        case "kimi_delta":
            return nn.Identity()  # it has two norms of its own, beside one another
        case _:
            return norm(config, place)


def _mixing(config: ModelConfig, place: Place, number: int) -> nn.Module | None:
    kind = config.blocks.mixing_of(number)
    if kind == "attention":
        return attention(config, place, number)
    if kind == "gated_delta":
        return _delta_net(config, place)
    if kind == "kimi_delta":
        return _kimi_delta(config, place)
    if kind == "short_conv":
        return _short_convolution(config, place)
    return _square(config, place) if kind == "linear" else None


def _feed_forward(config: ModelConfig, place: Place, number: int) -> nn.Module | None:
    kind = config.blocks.feed_forward_of(number)
    if kind == "mlp":
        return feed_forward(config, place, number)
    return _square(config, place) if kind == "linear" else None


def _square(config: ModelConfig, place: Place) -> SquareLinear:
    return SquareLinear(place, config.hidden_size, bias=config.add_bias_linear, initial=initial(config))


def _mamba(config: ModelConfig, place: Place) -> MambaMixer:
    m, h = config.mamba, config.hidden_size
    return MambaMixer(
        place,
        m,
        in_proj=ColumnParallelLinear(
            place, h, sum(m.blocks), bias=False, initial=initial(config), blocks=m.blocks, overlap=config.tp_overlap.fc1
        ),
        out_proj=RowParallelLinear(
            place, m.width, h, bias=False, initial=initial(config, deep=True), overlap=config.tp_overlap.fc2
        ),
    )


def _delta_net(config: ModelConfig, place: Place) -> GatedDeltaNet:
    d = config.delta
    return GatedDeltaNet(
        place,
        d,
        in_proj=_up(config, place, config.hidden_size, d.blocks),
        out_norm=_norm_of_heads(config, place),
        out_proj=_out_of_heads(config, place),
    )


def _kimi_delta(config: ModelConfig, place: Place) -> KimiDeltaAttention:
    d, h = config.delta, config.hidden_size
    return KimiDeltaAttention(
        place,
        d,
        in_norm=norm(config, place),
        in_proj=_up(config, place, h, d.read),
        gate_norm=norm(config, place),
        gates_down_proj=ReplicatedLinear(place, h, sum(d.gates_down), initial=initial(config)),
        decay_up_proj=_up(config, place, d.value_head_dim, (d.decays,)),
        out_gate_up_proj=_up(config, place, d.value_head_dim, (d.values,), bias=True),
        out_norm=_norm_of_heads(config, place),
        out_proj=_out_of_heads(config, place),
    )


def _up(config: ModelConfig, place: Place, inputs: int, blocks: tuple[int, ...], *, bias: bool = False) -> ColumnParallelLinear:
    return ColumnParallelLinear(
        place, inputs, sum(blocks), bias=bias, initial=initial(config), blocks=blocks, overlap=config.tp_overlap.qkv
    )


def _norm_of_heads(config: ModelConfig, place: Place) -> nn.Module:
    """Each rank norms its own heads, so the one gain of all heads gets a part of its gradient on every rank."""
    return norm_kind(config)(
        place,
        config.delta.value_head_dim,
        eps=config.norm_epsilon,
        one_plus=config.layernorm_1p,
        partial_grad=place.tp.size > 1,
    )


def _out_of_heads(config: ModelConfig, place: Place) -> RowParallelLinear:
    return RowParallelLinear(
        place,
        config.delta.values,
        config.hidden_size,
        bias=False,
        initial=initial(config, deep=True),
        overlap=config.tp_overlap.proj,
    )


def _short_convolution(config: ModelConfig, place: Place) -> ShortConvolution:
    h, overlap = config.hidden_size, config.tp_overlap
    return ShortConvolution(
        in_proj=ColumnParallelLinear(place, h, 3 * h, bias=False, initial=initial(config), blocks=3, overlap=overlap.qkv),
        conv1d=CausalConvolution(place, (h,), SHORT_TAPS, bias=False),
        out_proj=RowParallelLinear(place, h, h, bias=False, initial=initial(config, deep=True), overlap=overlap.proj),
    )
