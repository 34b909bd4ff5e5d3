"""What forward passes keep for the backward on one rank, in bytes: an estimate from the configuration.

Each tensor that is kept counts once; what the allocator and the kernels hold for themselves is left out. Tokens are taken to
spread evenly over experts.
"""

from dataclasses import dataclass

from primus.engine.config import ConfigContainer, ModelConfig
from primus.engine.config.model import GATED_ACTIVATIONS
from primus.engine.config.recompute import stretches
from primus.engine.model.size import padded_vocab_size
from primus.engine.pipeline.schedules import Row

__all__ = ["WIDTHS", "Stage", "activation_bytes"]

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that follow one another, with the ends of the model if they are its first or last."""

    layers: range
    is_first: bool
    is_last: bool
    is_copy: bool
    """Has an output matrix of its own that is tied to the embedding of another rank."""


def activation_bytes(config: ConfigContainer, stages: list[Stage], row: Row) -> int:
    """Return the most that forward passes keep for their backward at any moment of a step."""
    kept, replayed = zip(*(_microbatch_bytes(config, stage) for stage in stages), strict=True)
    moved = [_attention_bytes(config, stage) for stage in stages] if config.model.pipeline.offload.tensors == "attn" else kept
    postponed = [_postponed_bytes(config, stage) for stage in stages]
    limit = config.model.pipeline.output_gradient_limit * config.model.pipeline.num_slices or len(row)
    releases = "W" if any(op.kind == "W" for op in row) else "B"
    alive, peak, count = 0, 0, 0
    for op in row:
        alive += kept[op.chunk] * ((op.kind == "F") - (op.kind == releases))
        alive += moved[op.chunk] * ((op.kind == "R") - (op.kind == "O"))
        if op.kind == "B" and postponed[op.chunk] and count < limit:
            alive, count = alive + postponed[op.chunk], count + 1
        peak = max(peak, alive)
    return int(peak + max(replayed))


def _microbatch_bytes(config: ConfigContainer, stage: Stage) -> tuple[int, int]:
    """Return what one microbatch, or a slice of it, keeps, and what its largest replay holds besides."""
    model, tokens = config.model, _tokens(config)
    ranks = model.parallel.tensor_model_parallel_size
    width = WIDTHS[config.mixed_precision.params_dtype]
    is_divided = model.parallel.sequence_parallel or model.recompute.distribute_saved_activations
    an_input = model.hidden_size // (ranks if is_divided else 1)
    runs = [
        (sum(_layer_width(model, number) for number in stretch.layers), stretch.is_recomputed)
        for stretch in stretches(model.recompute, stage.layers)
    ]
    a_token = sum(an_input if is_recomputed else size for size, is_recomputed in runs) * width
    replayed = max((size for size, is_recomputed in runs if is_recomputed), default=0) * width
    if stage.is_last:
        # The logits and their softmax in fp32.
        a_token += padded_vocab_size(model) // ranks * (width + max(4, width))
    return tokens * a_token, tokens * replayed


def _layer_width(model: ModelConfig, number: int) -> int:
    """Return how many numbers a rank keeps of a token in layer `number`."""
    m, attention, ranks = model.moe, model.attention, model.parallel.tensor_model_parallel_size
    sequence_ranks = ranks if model.parallel.sequence_parallel else 1
    # Inputs of two norms and two matrices; queries, keys, values, the heads' output; both sides of the activation.
    whole = 4 * model.hidden_size
    # A slice keeps keys and values of those before it, too: on average of half of them.
    divided = _attention_width(model) + _key_value_width(model) * (model.pipeline.num_slices - 1) // 2
    if attention.mla.enabled:
        # Latent vectors before and after their norms; values are views of what the unrotated keys are copied from.
        whole += 2 * (attention.mla.kv_lora_rank + (attention.mla.q_lora_rank or 0)) + attention.mla.qk_pos_emb_head_dim
        divided += attention.num_attention_heads * attention.mla.qk_head_dim
    if number not in m.layers:
        return whole // sequence_ranks + (divided + _mlp_width(model, model.ffn_hidden_size)) // ranks
    if m.shared_expert_intermediate_size is not None:
        divided += _mlp_width(model, m.shared_expert_intermediate_size)
    return (whole + _expert_width(model)) // sequence_ranks + divided // ranks


def _mlp_width(model: ModelConfig, width: int) -> int:
    """Return the numbers on both sides of the activation."""
    return width * (3 if model.activation in GATED_ACTIVATIONS else 2)


def _expert_width(model: ModelConfig) -> int:
    """Return the numbers that a token's experts keep of it, scores included."""
    m, tensor = model.moe, model.parallel.expert_tensor_parallel_size or model.parallel.tensor_model_parallel_size
    assert m.num_experts is not None
    width = m.ffn_hidden_size or model.ffn_hidden_size
    # Ranks that share an expert all have the row; the activation is kept before and after its weight.
    row = model.hidden_size * tensor + _mlp_width(model, width) + width
    return 2 * m.num_experts + m.router_topk * row


def _postponed_bytes(config: ConfigContainer, stage: Stage) -> int:
    """Return what a microbatch, or a slice of it, leaves behind for the output layer's weight gradient at the step's end."""
    model = config.model
    if not (stage.is_last and model.pipeline.postpone_output_gradient):
        return 0
    tokens = config.train.micro_batch_size * model.seq_length // model.parallel.context_parallel_size
    features = padded_vocab_size(model) // model.parallel.tensor_model_parallel_size + model.hidden_size
    return tokens // model.pipeline.num_slices * features * WIDTHS[config.mixed_precision.params_dtype]


def _attention_bytes(config: ConfigContainer, stage: Stage) -> int:
    """Return what core attention keeps of one microbatch, its output included."""
    model = config.model
    layers = sum(len(run.layers) for run in stretches(model.recompute, stage.layers) if not run.is_recomputed)
    width = WIDTHS[config.mixed_precision.params_dtype]
    return _tokens(config) * layers * (_attention_width(model) // model.parallel.tensor_model_parallel_size) * width


def _attention_width(model: ModelConfig) -> int:
    """Return how many numbers that is for a token, over all tensor-parallel ranks: q, k, v, the output, and explicit scores."""
    attention = model.attention
    if attention.mla.enabled:
        queries_and_output = attention.num_attention_heads * (attention.mla.score_channels + attention.mla.v_head_dim)
    else:
        queries_and_output = 2 * attention.num_attention_heads * attention.kv_channels
    width = queries_and_output + _key_value_width(model)
    if attention.backend in ("unfused", "local") and model.recompute.granularity != "selective":
        width += 2 * attention.num_attention_heads * model.seq_length
    return width


def _key_value_width(model: ModelConfig) -> int:
    """Return how many numbers keys and values are for a token, over all tensor-parallel ranks."""
    attention, mla = model.attention, model.attention.mla
    if mla.enabled:
        return attention.num_attention_heads * (mla.score_channels + mla.v_head_dim)
    return 2 * attention.num_query_groups * attention.kv_channels


def _tokens(config: ConfigContainer) -> int:
    """Return the tokens of a microbatch, or of a slice of it, on one rank."""
    parts = config.model.parallel.context_parallel_size * config.model.pipeline.num_slices
    return config.train.micro_batch_size * config.model.seq_length // parts
