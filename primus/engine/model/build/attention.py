"""Self-attention: the projections, the norms of heads, and the core that fits backend and context parallelism."""

from torch import nn

from primus.engine.config.model import ModelConfig
from primus.engine.kernels.pick import pick
from primus.engine.kernels.varied_attention import ScoreRule
from primus.engine.model.attention import (
    ExplicitAttention,
    FusedAttention,
    GatheredHeads,
    OwnHeads,
    SelfAttention,
    SinkAttention,
)
from primus.engine.model.build.mla import latent_attention
from primus.engine.model.build.parts import initial, norm_kind
from primus.engine.model.context_attention import ExchangedAttention, GatheredAttention, RingAttention
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.norms import L2Norm, WholeHeadsNorm
from primus.engine.model.parameter import Place
from primus.engine.model.positioned import Positioned, Rotated, Unrotated
from primus.engine.model.recompute import Recompute, RecomputedModule

__all__ = ["attention"]


def attention(config: ModelConfig, place: Place, number: int) -> nn.Module:
    """Return the attention of layer `number`."""
    core = _core_attention(config, place, number)
    if config.recompute.granularity == "selective":
        core = RecomputedModule(core, Recompute(place.streams))
    if config.attention.sinks:
        core = SinkAttention(place, config.attention.num_attention_heads, core)
    if config.attention.mla.enabled:
        return latent_attention(config, place, core)
    return _self_attention(config, place, number, core)


def _self_attention(config: ModelConfig, place: Place, number: int, core: nn.Module) -> SelfAttention:
    a = config.attention
    width = a.num_attention_heads * a.kv_channels
    return SelfAttention(
        linear_qkv=ColumnParallelLinear(
            place,
            config.hidden_size,
            width * (2 if a.output_gate else 1) + 2 * a.num_query_groups * a.kv_channels,
            bias=a.add_qkv_bias,
            initial=initial(config),
            overlap=config.tp_overlap.qkv,
        ),
        own_heads=_own_heads(config, place),
        q_layernorm=_head_norm(config, place, number, a.num_attention_heads),
        k_layernorm=_head_norm(config, place, number, a.num_query_groups),
        position=_position(config, place, number),
        core_attention=core,
        linear_proj=RowParallelLinear(
            place,
            width,
            config.hidden_size,
            bias=config.add_bias_linear,
            initial=initial(config, deep=True),
            overlap=config.tp_overlap.proj,
        ),
    )


def _own_heads(config: ModelConfig, place: Place) -> OwnHeads | GatheredHeads:
    groups, channels = config.attention.num_query_groups, config.attention.kv_channels
    queries_per_group, is_gated = config.attention.num_attention_heads // groups, config.attention.output_gate
    if groups < place.tp.size:
        return GatheredHeads(place.tp, groups, queries_per_group, channels, is_gated=is_gated)
    return OwnHeads(groups // place.tp.size, queries_per_group, channels, is_gated=is_gated)


def _core_attention(config: ModelConfig, place: Place, number: int) -> nn.Module:
    a, rule = config.attention, _score_rule(config, number)
    if place.cp.size > 1:
        return _context_attention(config, place, number, rule)
    if a.query_key_layer_scaling:
        return ExplicitAttention(
            place, dropout=a.attention_dropout, softmax_in_fp32=a.softmax_in_fp32, rule=rule, layer_scaling=number + 1
        )
    return _plain_attention(config, place, rule)


def _score_rule(config: ModelConfig, number: int) -> ScoreRule:
    a = config.attention
    return ScoreRule(
        window=None if number in a.full_layers else a.window,
        cap=a.soft_cap,
        chunk=None if number in config.position.unrotated_layers else a.chunk,
    )


def _plain_attention(config: ModelConfig, place: Place, rule: ScoreRule, share: tuple[int, int] = (0, 1)) -> nn.Module:
    """Return attention over whole sequences for a share of the rank's heads."""
    a = config.attention
    if a.backend in ("unfused", "local"):
        return ExplicitAttention(place, dropout=a.attention_dropout, softmax_in_fp32=a.softmax_in_fp32, rule=rule, share=share)
    plain = pick("attention", config.fusion, device_type=place.device.type, dtype=place.dtype)
    return FusedAttention(place, dropout=a.attention_dropout, rule=rule, share=share, plain=plain)


def _context_attention(config: ModelConfig, place: Place, number: int, rule: ScoreRule) -> nn.Module:
    ways, dropout = config.parallel.cp_comm_type, config.attention.attention_dropout
    way = ways[number] if len(ways) > 1 else ways[0]
    if way == "allgather":
        return GatheredAttention(place.cp, place.streams, dropout=dropout, rule=rule)
    if way == "a2a":
        return ExchangedAttention(place.cp, _plain_attention(config, place, rule, (place.cp.index, place.cp.size)))
    if way == "a2a+p2p":
        share = place.cp_exchange.index, place.cp_exchange.size
        ring = RingAttention(place.cp_ring, place.streams, dropout=dropout, rule=rule, share=share)
        return ExchangedAttention(place.cp_exchange, ring)
    return RingAttention(place.cp, place.streams, dropout=dropout, rule=rule)


def _position(config: ModelConfig, place: Place, number: int) -> Positioned:
    p = config.position
    if number not in p.unrotated_layers:
        return Rotated(interleaved=p.rotary_interleaved)
    return Unrotated(place.cp, scale=p.temperature_scale, floor=p.temperature_floor)


def _head_norm(config: ModelConfig, place: Place, number: int, heads: int) -> nn.Module | None:
    if config.attention.qk_norm == "none":
        return None
    if config.attention.qk_norm == "l2":
        # Llama 4 bounds the scores of rotated heads alone.
        return None if number in config.position.unrotated_layers else L2Norm(eps=config.norm_epsilon)
    channels = config.attention.kv_channels
    if config.attention.qk_norm == "whole":
        return WholeHeadsNorm(place, heads, channels, eps=config.norm_epsilon, one_plus=config.layernorm_1p)
    # Each rank norms its own heads, so the one gain of all heads gets a part of its gradient on every rank.
    return norm_kind(config)(
        place, channels, eps=config.norm_epsilon, one_plus=config.layernorm_1p, partial_grad=place.tp.size > 1
    )
