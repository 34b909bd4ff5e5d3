"""Multi-latent attention: its projections, the norms of latent vectors, and a core that takes its heads."""

from torch import nn

from primus.engine.config.model import ModelConfig
from primus.engine.kernels.rope import yarn_mscale
from primus.engine.model.build.parts import initial, norm_kind
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mla import LatentAttention, ReplicatedLinear, SameWidth
from primus.engine.model.parameter import Place

__all__ = ["latent_attention"]


def latent_attention(config: ModelConfig, place: Place, core: nn.Module) -> LatentAttention:
    """Return latent attention around a core."""
    a, mla = config.attention, config.attention.mla
    heads = a.num_attention_heads
    up = _up(config, place, mla.kv_lora_rank, heads * (mla.qk_head_dim + mla.v_head_dim))
    return LatentAttention(
        place,
        queries=_queries(config, place),
        linear_kv_down_proj=ReplicatedLinear(
            place, config.hidden_size, mla.kv_lora_rank + mla.qk_pos_emb_head_dim, initial=initial(config)
        ),
        keys_and_values=_normed(config, place, "kv_layernorm", mla.kv_lora_rank) | {"linear_kv_up_proj": up},
        core_attention=SameWidth(core) if place.cp.size > 1 else core,
        linear_proj=RowParallelLinear(
            place,
            heads * mla.v_head_dim,
            config.hidden_size,
            bias=config.add_bias_linear,
            initial=initial(config, deep=True),
            overlap=config.tp_overlap.proj,
        ),
        channels=(mla.qk_head_dim, mla.qk_pos_emb_head_dim, mla.v_head_dim),
        temperature=_temperature(config),
    )


def _queries(config: ModelConfig, place: Place) -> dict[str, nn.Module]:
    mla = config.attention.mla
    outputs = config.attention.num_attention_heads * mla.score_channels
    if mla.q_lora_rank is None:
        return {"linear_q_proj": _up(config, place, config.hidden_size, outputs)}
    down = ReplicatedLinear(place, config.hidden_size, mla.q_lora_rank, initial=initial(config))
    return {
        "linear_q_down_proj": down,
        **_normed(config, place, "q_layernorm", mla.q_lora_rank),
        "linear_q_up_proj": _up(config, place, mla.q_lora_rank, outputs),
    }


def _up(config: ModelConfig, place: Place, inputs: int, outputs: int) -> ColumnParallelLinear:
    return ColumnParallelLinear(place, inputs, outputs, bias=False, initial=initial(config), overlap=config.tp_overlap.qkv)


def _normed(config: ModelConfig, place: Place, name: str, width: int) -> dict[str, nn.Module]:
    if config.attention.qk_norm == "none":
        return {}
    norm = norm_kind(config)(
        place, width, eps=config.norm_epsilon, one_plus=config.layernorm_1p, partial_grad=place.sequence_parallel
    )
    return {name: norm}


def _temperature(config: ModelConfig) -> float:
    """Return YaRN's factor of the scores; a longer context asks for it, and plain rotation has none."""
    position = config.position
    if position.type != "yarn":
        return 1.0
    return yarn_mscale(position.yarn_scaling_factor, position.yarn_mscale_all_dim or 0.0) ** 2
