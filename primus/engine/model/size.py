"""How big a model is: integers from the configuration, no torch.

`parameter_count` counts real rows plus the vocabulary's padding. A layer's parameters are told apart by how ranks share them,
since that is what decides how many one of them has.
"""

from dataclasses import dataclass

from primus.engine.config.blocks import LayerKind
from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig, ParallelConfig
from primus.engine.config.ssm import SHORT_TAPS

__all__ = ["LayerSize", "ModelSize", "padded_vocab_size", "parameter_count"]


def padded_vocab_size(config: ModelConfig) -> int:
    """Return the embedding's rows: the vocabulary rounded up to `make_vocab_size_divisible_by` x tensor-parallel size."""
    assert config.vocab_size is not None, "vocab_size is filled from the tokenizer before anything is sized"
    multiple = config.make_vocab_size_divisible_by * config.parallel.tensor_model_parallel_size
    return -(-config.vocab_size // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSize:
    """Parameters of a layer, or of a part of one."""

    divided: int = 0
    """Shared by tensor-parallel ranks."""
    whole: int = 0
    """On each of them."""
    experts: int = 0
    """Of all experts together: shared by expert-parallel ranks, and each expert by expert-tensor-parallel ones."""
    active: int = 0
    """Of the experts that a token visits."""

    def __add__(self, other: "LayerSize") -> "LayerSize":
        """Return two parts together."""
        return LayerSize(
            divided=self.divided + other.divided,
            whole=self.whole + other.whole,
            experts=self.experts + other.experts,
            active=self.active + other.active,
        )

    @property
    def total(self) -> int:
        """All parameters."""
        return self.divided + self.whole + self.experts

    @property
    def total_active(self) -> int:
        """Those that a token meets."""
        return self.divided + self.whole + self.active

    def dense_on_rank(self, parallel: ParallelConfig) -> int:
        """Return how many of one rank's parameters are no expert's."""
        return self.divided // parallel.tensor_model_parallel_size + self.whole

    def experts_on_rank(self, parallel: ParallelConfig) -> int:
        """Return how many of one rank's parameters are its experts'."""
        tensor = parallel.expert_tensor_parallel_size or parallel.tensor_model_parallel_size
        return self.experts // (parallel.expert_model_parallel_size * tensor)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Parameters by part."""

    embedding: int
    """The table of words and that of positions."""
    layers: tuple[LayerSize, ...]
    predictions: tuple[LayerSize, ...]
    """Layers behind the last one that predict tokens further ahead."""
    final_norm: int
    output: int
    """0: the table of words serves."""

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.total:,d} parameters{f' ({self.active:,d} active)' if self.active != self.total else ''}"

    @property
    def total(self) -> int:
        """All parameters, a tied output matrix counted once."""
        return self._ends + sum(layer.total for layer in (*self.layers, *self.predictions))

    @property
    def active(self) -> int:
        """All but those of experts that a token does not visit; embedding and output included."""
        return self._ends + sum(layer.total_active for layer in (*self.layers, *self.predictions))

    @property
    def _ends(self) -> int:
        return self.embedding + self.final_norm + self.output


def parameter_count(config: ModelConfig) -> ModelSize:
    """Return the parameters of the whole model, undivided."""
    h = config.hidden_size
    table = padded_vocab_size(config) * h
    learned = config.position.max_position_embeddings * h if config.position.type == "learned_absolute" else 0
    kinds = config.layer_kinds()
    sizes = {kind: _layer(config, kind) for kind in set(kinds)}
    return ModelSize(
        embedding=table + learned,
        layers=tuple(sizes[kind] for kind in kinds),
        predictions=(_prediction(config, sizes[kinds[-1]]),) * config.mtp.num_layers,
        final_norm=_norm(config, h),
        output=0 if config.tie_embeddings else table,
    )


def _prediction(config: ModelConfig, last: LayerSize) -> LayerSize:
    """Return a layer like the last, behind the projection of hidden states and embedding, and three norms."""
    h = config.hidden_size
    return last + LayerSize(whole=2 * h * h + 3 * _norm(config, h))


def _layer(config: ModelConfig, kind: LayerKind) -> LayerSize:
    """Return a layer's halves, each with its norm."""
    norm = LayerSize(whole=_norm(config, config.hidden_size))
    size = LayerSize()
    match kind.mixing:
        case "attention":
            size += norm + _attention(config)
        case "mamba":
            size += norm + _mamba(config)
        case "gated_delta":
            size += norm + _delta_net(config)
        case "kimi_delta":
            size += norm + _kimi_delta(config)
        case "short_conv":
            size += norm + LayerSize(divided=config.hidden_size * (4 * config.hidden_size + SHORT_TAPS))
        case "linear":
            size += norm + _square(config)
    match kind.feed_forward:
        case "mlp":
            size += norm + (_experts(config) if kind.is_sparse else _mlp(config, kind.ffn_hidden_size))
        case "linear":
            size += norm + _square(config)
    behind = int(config.post_attention_norm and kind.mixing not in ("none", "mamba"))
    behind += int(config.post_mlp_norm and kind.feed_forward != "none")
    return size + LayerSize(whole=behind * norm.whole)


def _mamba(config: ModelConfig) -> LayerSize:
    """Projections, convolution with bias, three numbers a head, the norm before the way out."""
    m, h = config.mamba, config.hidden_size
    return LayerSize(
        divided=h * (sum(m.blocks) + m.width) + sum(m.blocks[1:4]) * (m.conv_width + 1) + 3 * m.num_heads + m.width
    )


def _delta_net(config: ModelConfig) -> LayerSize:
    """Projections, convolution without bias, two numbers a head, the norm of heads."""
    d, h = config.delta, config.hidden_size
    return LayerSize(
        divided=h * (sum(d.blocks) + d.values) + sum(d.blocks[:3]) * d.conv_width + 2 * d.num_value_heads,
        whole=_norm(config, d.value_head_dim),
    )


def _kimi_delta(config: ModelConfig) -> LayerSize:
    """Projections, convolution and decays, the norm of heads, and a second norm of the stream, before the gates."""
    d, h = config.delta, config.hidden_size
    gates = d.value_head_dim * (d.decays + d.values) + d.values
    return LayerSize(
        divided=h * (sum(d.read) + d.values) + sum(d.read) * d.conv_width + gates + d.num_value_heads + d.decays,
        whole=h * sum(d.gates_down) + _norm(config, h) + _norm(config, d.value_head_dim),
    )


def _square(config: ModelConfig) -> LayerSize:
    return LayerSize(divided=config.hidden_size * (config.hidden_size + config.add_bias_linear))


def _norm(config: ModelConfig, width: int) -> int:
    return width * (2 if config.normalization == "LayerNorm" else 1)


def _attention(config: ModelConfig) -> LayerSize:
    if config.attention.mla.enabled:
        return _latent_attention(config)
    h, d = config.hidden_size, config.attention.kv_channels
    q, kv = config.attention.num_attention_heads * d, config.attention.num_query_groups * d
    projected = q * (1 + config.attention.output_gate) + 2 * kv
    return LayerSize(
        divided=projected * (h + config.attention.add_qkv_bias) + h * q + (config.attention.qk_norm == "whole") * (q + kv),
        whole=h * config.add_bias_linear + (2 * _norm(config, d) if config.attention.qk_norm == "model" else 0),
    )


def _latent_attention(config: ModelConfig) -> LayerSize:
    """Projections up to heads are divided; those down to latent vectors, and their norms, are not."""
    h, heads, mla = config.hidden_size, config.attention.num_attention_heads, config.attention.mla
    normed = config.attention.qk_norm != "none"
    q, kv = heads * mla.score_channels, heads * (mla.qk_head_dim + mla.v_head_dim)
    divided = mla.kv_lora_rank * kv + heads * mla.v_head_dim * h
    whole = h * (mla.kv_lora_rank + mla.qk_pos_emb_head_dim) + normed * _norm(config, mla.kv_lora_rank)
    if mla.q_lora_rank is None:
        divided += h * q
    else:
        divided += mla.q_lora_rank * q
        whole += h * mla.q_lora_rank + normed * _norm(config, mla.q_lora_rank)
    return LayerSize(divided=divided, whole=whole + h * config.add_bias_linear)


def _mlp(config: ModelConfig, width: int) -> LayerSize:
    h, biased = config.hidden_size, config.add_bias_linear
    return LayerSize(divided=_halves(config) * width * (h + biased) + h * width, whole=h * biased)


def _experts(config: ModelConfig) -> LayerSize:
    """Router, experts and the shared expert."""
    m, h = config.moe, config.hidden_size
    assert m.num_experts is not None
    width, biased = m.ffn_hidden_size or config.ffn_hidden_size, config.add_bias_linear
    each = _halves(config) * width * (h + biased) + h * (width + biased)
    routed = LayerSize(whole=m.num_experts * (h + biased), experts=m.num_experts * each, active=m.router_topk * each)
    if m.shared_expert_intermediate_size is None:
        return routed
    return routed + _mlp(config, m.shared_expert_intermediate_size) + LayerSize(whole=h * m.shared_expert_gate)


def _halves(config: ModelConfig) -> int:
    return 2 if config.activation in GATED_ACTIVATIONS else 1
