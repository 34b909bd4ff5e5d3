"""How big a model is and how much arithmetic a token costs: integers from the configuration, no torch.

`parameter_count` counts real rows plus the vocabulary's padding; `training_flops` is the published formula of Megatron's
throughput report: 6 = 3 (forward, gradients of input and weight) x 2 (multiply, add) for each weight a token meets, causal
attention at half the square, recomputation not counted.
"""

from dataclasses import dataclass

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig

__all__ = ["ModelSize", "padded_vocab_size", "parameter_count", "training_flops"]


def padded_vocab_size(config: ModelConfig) -> int:
    """Return the embedding's rows: the vocabulary rounded up to `make_vocab_size_divisible_by` x tensor-parallel size."""
    assert config.vocab_size is not None, "vocab_size is filled from the tokenizer before anything is sized"
    multiple = config.make_vocab_size_divisible_by * config.parallel.tensor_model_parallel_size
    return -(-config.vocab_size // multiple) * multiple


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Parameters by part; `layer` is one layer."""

    embedding: int
    layer: int
    final_norm: int
    output: int
    num_layers: int

    @property
    def total(self) -> int:
        """All parameters, a tied output matrix counted once."""
        return self.embedding + self.num_layers * self.layer + self.final_norm + self.output


def parameter_count(config: ModelConfig) -> ModelSize:
    """Return the parameters of the whole model, undivided."""
    h, d = config.hidden_size, config.attention.kv_channels
    q, kv = config.attention.num_attention_heads * d, config.attention.num_query_groups * d
    norms_of = 2 if config.normalization == "LayerNorm" else 1
    fc1 = config.ffn_hidden_size * (2 if config.activation in GATED_ACTIVATIONS else 1)
    biased = int(config.add_bias_linear)
    attention = (q + 2 * kv) * (h + int(config.attention.add_qkv_bias)) + h * (q + biased)
    if config.attention.qk_norm == "model":
        attention += 2 * norms_of * d
    mlp = fc1 * (h + biased) + h * (config.ffn_hidden_size + biased)
    table = padded_vocab_size(config) * h
    learned = config.position.max_position_embeddings * h if config.position.type == "learned_absolute" else 0
    return ModelSize(
        embedding=table + learned,
        layer=attention + mlp + 2 * norms_of * h,
        final_norm=norms_of * h,
        output=0 if config.tie_embeddings else table,
        num_layers=config.num_layers,
    )


def training_flops(config: ModelConfig, batch_size: int) -> int:
    """Return the floating-point operations of one iteration on `batch_size` sequences."""
    h, s, d = config.hidden_size, config.seq_length, config.attention.kv_channels
    q, kv = config.attention.num_attention_heads * d, config.attention.num_query_groups * d
    matrices = 3 if config.activation in GATED_ACTIVATIONS else 2
    attention = h * (q + 2 * kv) + q * s + q * h
    layers = config.num_layers * (attention + h * config.ffn_hidden_size * matrices)
    return 6 * batch_size * s * (layers + h * padded_vocab_size(config))
