"""`build_model` turns a configuration into a model: every part is chosen here, once, so that no forward reads a flag."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.pipeline import stage_of
from primus.engine.config.recompute import Stretch, stretches
from primus.engine.kernels.activation import ACTIVATIONS
from primus.engine.kernels.cross_entropy import deferrable_linear_cross_entropy, linear_cross_entropy
from primus.engine.model.attention import ExplicitAttention, FusedAttention, GatheredHeads, OwnHeads, SelfAttention
from primus.engine.model.context_attention import ExchangedAttention, GatheredAttention, RingAttention
from primus.engine.model.dropout import BiasDropoutAdd
from primus.engine.model.embedding import Embedding, PositionEmbedding, VocabParallelEmbedding
from primus.engine.model.gpt import GPTModel
from primus.engine.model.hidden import residual_dtype
from primus.engine.model.initialise import initialise, zero_padding
from primus.engine.model.layer import Decoder, Layer, residual_after_norm, residual_before_norm
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mlp import MLP
from primus.engine.model.moe.experts import Experts
from primus.engine.model.moe.layer import MoELayer, attach_losses
from primus.engine.model.moe.router import Router
from primus.engine.model.norms import L2Norm, LayerNorm, RMSNorm
from primus.engine.model.output import OutputLayer, SumOfLosses
from primus.engine.model.parameter import Initial, Place, declare, normal, xavier_uniform
from primus.engine.model.recompute import DistributedRecompute, Recompute, RecomputedModule, Runner, keep
from primus.engine.model.rotary import RotaryEmbedding
from primus.engine.model.size import padded_vocab_size
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Sharding
from primus.errors import ConfigError

__all__ = ["build_model"]

_EMBEDDING_WEIGHT = "embedding.word_embeddings.weight"


def build_model(
    config: ModelConfig,
    *,
    mesh: Mesh,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    streams: RandomStreams,
    cross_entropy_in_fp16: bool = False,
) -> tuple[GPTModel, ...]:
    """Build this rank's chunks of the model, in the order of their numbers, and fill them (unless `init.perform` is false).

    Without pipelining that is one, the whole model. With `init.meta_device` weights have no memory yet, and no values.
    """
    place = Place(
        tp=mesh.tp,
        cp=mesh.cp,
        cp_exchange=mesh.cp_exchange,
        cp_ring=mesh.cp_ring,
        dtype=dtype,
        device=torch.device(device),
        weights_device=torch.device("meta" if config.init.meta_device else device),
        streams=streams,
        sequence_parallel=config.parallel.sequence_parallel and mesh.tp.size > 1,
    )
    _check_divisible(config, mesh.tp.size)
    pipeline, ranks = config.pipeline, mesh.pp.size
    layers = pipeline.stage_layers(config.num_layers, ranks)
    chunks: list[GPTModel] = []
    for number in range(pipeline.num_chunks):
        stage = stage_of(pipeline.placement, ranks, mesh.pp.index, number)
        ends = _Ends(
            is_first=stage == 0,
            is_last=stage == len(layers) - 1,
            are_apart=ranks > 1 and pipeline.placement != "fold",
            embedding=chunks[0].embedding if chunks else None,
        )
        chunks.append(_chunk(config, place, layers[stage], ends, cross_entropy_in_fp16))
    if config.init.meta_device:
        return tuple(chunks)
    if config.init.perform:
        initialise(chunks, seed=seed, tp=mesh.tp)
    else:
        zero_padding(chunks, tp=mesh.tp)
    return tuple(chunks)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """What a stage has to do with the ends of the model."""

    is_first: bool
    is_last: bool
    are_apart: bool
    """First and last stage lie on two ranks."""
    embedding: Embedding | None
    """The embedding, if an earlier chunk of the rank has it."""


def _chunk(config: ModelConfig, place: Place, layers: range, ends: _Ends, cross_entropy_in_fp16: bool) -> GPTModel:
    tied_to = _EMBEDDING_WEIGHT if config.tie_embeddings and ends.are_apart else None
    embedding = _embedding(config, place, tied_to) if ends.is_first else None
    output = None
    if ends.is_last:
        output = _output(config, place, embedding or ends.embedding, tied_to, cross_entropy_in_fp16)
    decoder = Decoder(
        {number: _layer(config, place, number) for number in layers},
        _norm(config, place) if ends.is_last else None,
        _runs(config, place, layers),
    )
    return GPTModel(embedding=embedding, rotary=_rotary(config, place), decoder=decoder, output_layer=output)


def _check_divisible(config: ModelConfig, tp: int) -> None:
    heads, groups = config.attention.num_attention_heads, config.attention.num_query_groups
    parts = {
        "num_attention_heads": heads,
        "ffn_hidden_size": config.ffn_hidden_size,
        "rows of the fused QKV projection": (heads + 2 * groups) * config.attention.kv_channels,
    }
    if config.parallel.sequence_parallel:
        parts["seq_length"] = config.seq_length
    for name, size in parts.items():
        if size % tp:
            raise ConfigError(
                f"{name} ({size}) is not a multiple of tensor_model_parallel_size ({tp}); choose sizes that divide"
            )
    if heads % groups or (groups % tp and tp % groups):
        raise ConfigError(
            f"num_query_groups ({groups}) must divide num_attention_heads ({heads}) and divide, or be a multiple of, "
            f"tensor_model_parallel_size ({tp})"
        )


def _embedding(config: ModelConfig, place: Place, tied_to: str | None) -> Embedding:
    learned = config.position.type == "learned_absolute"
    rows = config.position.max_position_embeddings
    positions = PositionEmbedding(place, rows, config.hidden_size, initial=_initial(config)) if learned else None
    words = VocabParallelEmbedding(
        place,
        padded_vocab_size(config),
        config.hidden_size,
        sharding=_vocabulary_sharding(config, tied_to),
        initial=_initial(config),
    )
    return Embedding(place, words, positions, dropout=config.hidden_dropout, residual_dtype=residual_dtype(config, place.dtype))


def _output(config: ModelConfig, place: Place, embedding: Embedding | None, tied_to: str | None, in_fp16: bool) -> OutputLayer:
    """`embedding` is the rank's own; where another rank has it, a tied output keeps a copy."""
    if config.tie_embeddings and embedding is not None:
        weight = embedding.word_embeddings.weight
    else:
        sharding = _vocabulary_sharding(config, tied_to, is_copy=tied_to is not None)
        weight = declare(place, (padded_vocab_size(config), config.hidden_size), sharding, _initial(config))
    form = None if in_fp16 else _sum_of_losses(config, place)
    return OutputLayer(place, weight, vocab_size=_vocab_size(config), sum_of_losses=form, cross_entropy_in_fp16=in_fp16)


def _sum_of_losses(config: ModelConfig, place: Place) -> SumOfLosses | None:
    # On the CPU chunks are both faster and smaller (logits stay in the cache), so they need no asking for.
    if not (config.fusion.cross_entropy or place.device.type == "cpu"):
        return None
    return deferrable_linear_cross_entropy if config.pipeline.defers_output_gradient else linear_cross_entropy


def _vocabulary_sharding(config: ModelConfig, tied_to: str | None, *, is_copy: bool = False) -> Sharding:
    return Sharding(dim=0, is_embedding_or_output=True, valid_rows=_vocab_size(config), tied_to=tied_to, is_copy=is_copy)


def _rotary(config: ModelConfig, place: Place) -> RotaryEmbedding | None:
    if config.position.type not in ("rope", "yarn"):
        return None
    return RotaryEmbedding(
        config.position,
        config.attention.kv_channels,
        length=config.seq_length,
        cp=place.cp,
        dtype=place.dtype,
        device=place.device,
    )


def _runs(config: ModelConfig, place: Place, numbers: range) -> list[tuple[Stretch, Runner]]:
    distributes = config.recompute.distribute_saved_activations
    recompute = DistributedRecompute(place.streams, place.tp) if distributes else Recompute(place.streams)
    return [(stretch, recompute if stretch.is_recomputed else keep) for stretch in stretches(config.recompute, numbers)]


def _layer(config: ModelConfig, place: Place, number: int) -> Layer:
    return Layer(
        input_layernorm=_norm(config, place),
        self_attention=_attention(config, place, number),
        pre_mlp_layernorm=_norm(config, place),
        mlp=_moe(config, place) if number in config.moe.layers else _mlp(config, place, config.ffn_hidden_size),
        add=BiasDropoutAdd(place, config.hidden_dropout),
        residual=residual_after_norm if config.residual_post_layernorm else residual_before_norm,
    )


def _attention(config: ModelConfig, place: Place, number: int) -> SelfAttention:
    a = config.attention
    width, core = a.num_attention_heads * a.kv_channels, _core_attention(config, place, number)
    return SelfAttention(
        linear_qkv=ColumnParallelLinear(
            place,
            config.hidden_size,
            width + 2 * a.num_query_groups * a.kv_channels,
            bias=a.add_qkv_bias,
            initial=_initial(config),
            overlap=config.tp_overlap.qkv,
        ),
        own_heads=_own_heads(config, place),
        q_layernorm=_head_norm(config, place),
        k_layernorm=_head_norm(config, place),
        interleaved=config.position.rotary_interleaved,
        core_attention=(
            RecomputedModule(core, Recompute(place.streams)) if config.recompute.granularity == "selective" else core
        ),
        linear_proj=RowParallelLinear(
            place,
            width,
            config.hidden_size,
            bias=config.add_bias_linear,
            initial=_initial(config, deep=True),
            overlap=config.tp_overlap.proj,
        ),
    )


def _own_heads(config: ModelConfig, place: Place) -> OwnHeads | GatheredHeads:
    groups, channels = config.attention.num_query_groups, config.attention.kv_channels
    queries_per_group = config.attention.num_attention_heads // groups
    if groups < place.tp.size:
        return GatheredHeads(place.tp, groups, queries_per_group, channels)
    return OwnHeads(groups // place.tp.size, queries_per_group, channels)


def _core_attention(config: ModelConfig, place: Place, number: int) -> nn.Module:
    a = config.attention
    if place.cp.size > 1:
        return _context_attention(config, place, number)
    if a.query_key_layer_scaling:
        scaling = number + 1
        return ExplicitAttention(place, dropout=a.attention_dropout, softmax_in_fp32=a.softmax_in_fp32, layer_scaling=scaling)
    return _plain_attention(config, place)


def _plain_attention(config: ModelConfig, place: Place, share: tuple[int, int] = (0, 1)) -> nn.Module:
    """Return attention over whole sequences for a share of the rank's heads."""
    a = config.attention
    if a.backend in ("unfused", "local"):
        return ExplicitAttention(place, dropout=a.attention_dropout, softmax_in_fp32=a.softmax_in_fp32, share=share)
    return FusedAttention(place, dropout=a.attention_dropout)


def _context_attention(config: ModelConfig, place: Place, number: int) -> nn.Module:
    ways, dropout = config.parallel.cp_comm_type, config.attention.attention_dropout
    way = ways[number] if len(ways) > 1 else ways[0]
    if way == "allgather":
        return GatheredAttention(place.cp, place.streams, dropout=dropout)
    if way == "a2a":
        return ExchangedAttention(place.cp, _plain_attention(config, place, (place.cp.index, place.cp.size)))
    if way == "a2a+p2p":
        share = place.cp_exchange.index, place.cp_exchange.size
        ring = RingAttention(place.cp_ring, place.streams, dropout=dropout, share=share)
        return ExchangedAttention(place.cp_exchange, ring)
    return RingAttention(place.cp, place.streams, dropout=dropout)


def _moe(config: ModelConfig, place: Place) -> MoELayer:
    m, h = config.moe, config.hidden_size
    assert m.num_experts is not None
    experts = Experts(
        place,
        experts=m.num_experts,
        hidden=h,
        width=m.ffn_hidden_size or config.ffn_hidden_size,
        halves=2 if config.activation in GATED_ACTIVATIONS else 1,
        activation=ACTIVATIONS[config.activation],
        initial=_initial(config),
        deep=_initial(config, deep=True),
    )
    shared = m.shared_expert_intermediate_size
    return MoELayer(
        router=Router(place, m, h, initial=_initial(config)),
        experts=experts,
        shared_experts=None if shared is None else _mlp(config, place, shared),
        attach=attach_losses,
    )


def _mlp(config: ModelConfig, place: Place, f: int) -> MLP:
    halves = 2 if config.activation in GATED_ACTIVATIONS else 1
    h, bias = config.hidden_size, config.add_bias_linear
    return MLP(
        linear_fc1=ColumnParallelLinear(
            place, h, halves * f, bias=bias, initial=_initial(config), blocks=halves, overlap=config.tp_overlap.fc1
        ),
        activation=ACTIVATIONS[config.activation],
        linear_fc2=RowParallelLinear(
            place, f, h, bias=bias, initial=_initial(config, deep=True), overlap=config.tp_overlap.fc2
        ),
    )


def _norm(config: ModelConfig, place: Place) -> nn.Module:
    kind = RMSNorm if config.normalization == "RMSNorm" else LayerNorm
    return kind(
        place,
        config.hidden_size,
        eps=config.norm_epsilon,
        one_plus=config.layernorm_1p,
        partial_grad=place.sequence_parallel,
    )


def _head_norm(config: ModelConfig, place: Place) -> nn.Module | None:
    if config.attention.qk_norm == "none":
        return None
    if config.attention.qk_norm == "l2":
        return L2Norm(eps=config.norm_epsilon)
    kind = RMSNorm if config.normalization == "RMSNorm" else LayerNorm
    channels = config.attention.kv_channels
    # Each rank norms its own heads, so the one gain of all heads gets a part of its gradient on every rank.
    return kind(place, channels, eps=config.norm_epsilon, one_plus=config.layernorm_1p, partial_grad=place.tp.size > 1)


def _initial(config: ModelConfig, *, deep: bool = False) -> Initial:
    """Rule of a matrix; `deep` ones write into the residual stream and shrink with the depth of the whole model."""
    if config.init.xavier_uniform:
        return xavier_uniform()
    return normal(config.init.method_std / math.sqrt(2 * config.num_layers) if deep else config.init.method_std)


def _vocab_size(config: ModelConfig) -> int:
    assert config.vocab_size is not None, "vocab_size is filled from the tokenizer before the model is built"
    return config.vocab_size
