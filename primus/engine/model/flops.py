"""How much arithmetic training costs: integers from the configuration, no torch.

The published formula of Megatron's throughput report: 6 = 3 (forward, gradients of input and weight) x 2 (multiply, add) for
each weight of a product that a token meets, causal attention at half the square, recomputation not counted. Routers, norms
and the other parts that are no large products are left out, as there.
"""

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.model.size import padded_vocab_size

__all__ = ["training_flops"]


def training_flops(config: ModelConfig, batch_size: int) -> int:
    """Return the floating-point operations of one iteration on `batch_size` sequences."""
    h, sparse = config.hidden_size, len(config.moe.layers)
    widths = (config.num_layers - sparse) * config.ffn_hidden_size + sparse * _width_of_experts(config)
    matrices = 3 if config.activation in GATED_ACTIVATIONS else 2
    layers = config.num_layers * _attention(config) + h * widths * matrices
    return 6 * batch_size * config.seq_length * (layers + h * padded_vocab_size(config))


def _attention(config: ModelConfig) -> int:
    """Return the multiplications of one token in a layer's attention."""
    if config.attention.mla.enabled:
        return _latent_attention(config)
    h, s, d = config.hidden_size, config.seq_length, config.attention.kv_channels
    q, kv = config.attention.num_attention_heads * d, config.attention.num_query_groups * d
    return h * (q + 2 * kv) + q * s + q * h


def _latent_attention(config: ModelConfig) -> int:
    h, heads, mla = config.hidden_size, config.attention.num_attention_heads, config.attention.mla
    q, kv, out = heads * mla.score_channels, heads * (mla.qk_head_dim + mla.v_head_dim), heads * mla.v_head_dim
    queries = h * q if mla.q_lora_rank is None else mla.q_lora_rank * (h + q)
    latent = mla.kv_lora_rank * (h + kv) + h * mla.qk_pos_emb_head_dim
    # Causal: on average half of the sequence.
    return queries + latent + config.seq_length * (q + out) // 2 + out * h


def _width_of_experts(config: ModelConfig) -> int:
    """Return the widths of all the feed-forward parts that a token passes in a sparse layer."""
    m = config.moe
    return m.router_topk * (m.ffn_hidden_size or config.ffn_hidden_size) + (m.shared_expert_intermediate_size or 0)
