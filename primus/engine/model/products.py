"""How many multiplications a token meets in a layer: integers from the configuration, no torch.

Routers, norms and the other parts that are no large products are left out.
"""

from primus.engine.config.blocks import LayerKind
from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig

__all__ = ["feed_forward", "mixing", "pairs"]


def pairs(config: ModelConfig, kind: LayerKind) -> int:
    """Return the multiplications of a query with a key and its value in a layer."""
    a = config.attention
    if kind.mixing != "attention":
        return 0
    if a.mla.enabled:
        return a.num_attention_heads * (a.mla.score_channels + a.mla.v_head_dim)
    return 2 * a.num_attention_heads * a.kv_channels


def mixing(config: ModelConfig, kind: LayerKind) -> int:
    """Return the multiplications of one token in the first half of a layer."""
    match kind.mixing:
        case "attention":
            return _attention(config)
        case "mamba":
            return _mamba(config)
        case "gated_delta":
            return _delta_net(config)
        case "kimi_delta":
            return _kimi_delta(config)
        case "short_conv":
            return 4 * config.hidden_size**2
        case "linear":
            return config.hidden_size**2
        case "none":
            return 0


def feed_forward(config: ModelConfig, kind: LayerKind) -> int:
    """Return the multiplications of one token in the second half of a layer."""
    h, matrices = config.hidden_size, 3 if config.activation in GATED_ACTIVATIONS else 2
    match kind.feed_forward:
        case "mlp":
            width = _width_of_experts(config) if kind.is_sparse else kind.ffn_hidden_size
            return h * width * matrices
        case "linear":
            return h * h
        case "none":
            return 0


def _mamba(config: ModelConfig) -> int:
    """Return the projections, and the scan token by token: a state is decayed, added to and read (in chunks it is more)."""
    m = config.mamba
    return config.hidden_size * (sum(m.blocks) + m.width) + 3 * m.width * m.state_dim


def _delta_net(config: ModelConfig) -> int:
    """Return the projections, and the rule token by token: a state is decayed, read twice and added to."""
    d = config.delta
    return config.hidden_size * (sum(d.blocks) + d.values) + 4 * d.values * d.key_head_dim


def _kimi_delta(config: ModelConfig) -> int:
    """Return the projections, those of the gates in two steps, and the rule token by token, as above."""
    d = config.delta
    projections = config.hidden_size * (sum(d.read) + sum(d.gates_down) + d.values)
    return projections + d.value_head_dim * (d.decays + d.values) + 4 * d.values * d.key_head_dim


def _attention(config: ModelConfig) -> int:
    """Return the multiplications of one token in a layer's projections around attention."""
    if config.attention.mla.enabled:
        return _latent_attention(config)
    h, d = config.hidden_size, config.attention.kv_channels
    q, kv = config.attention.num_attention_heads * d, config.attention.num_query_groups * d
    return h * (q * (1 + config.attention.output_gate) + 2 * kv) + q * h


def _latent_attention(config: ModelConfig) -> int:
    h, heads, mla = config.hidden_size, config.attention.num_attention_heads, config.attention.mla
    q, kv, out = heads * mla.score_channels, heads * (mla.qk_head_dim + mla.v_head_dim), heads * mla.v_head_dim
    queries = h * q if mla.q_lora_rank is None else mla.q_lora_rank * (h + q)
    latent = mla.kv_lora_rank * (h + kv) + h * mla.qk_pos_emb_head_dim
    return queries + latent + out * h


def _width_of_experts(config: ModelConfig) -> int:
    """Return the widths of all the feed-forward parts that a token passes in a sparse layer."""
    m = config.moe
    return m.router_topk * (m.ffn_hidden_size or config.ffn_hidden_size) + (m.shared_expert_intermediate_size or 0)
