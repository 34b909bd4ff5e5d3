"""What forward passes keep for the backward on one rank, in bytes: an estimate from the configuration.

Each tensor that is kept counts once; what the allocator and the kernels hold for themselves is left out. Tokens are taken to
spread evenly over experts.
"""

from dataclasses import dataclass

from primus.engine.config import ConfigContainer, ModelConfig
from primus.engine.config.model import GATED_ACTIVATIONS
from primus.engine.config.recompute import is_recomputed, stretches
from primus.engine.config.ssm import SCAN_CHUNK
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
    """Has a table of its own that is tied to the embedding of another rank."""


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
        # The logits and their softmax in fp32, for each depth; and what the layers of further depths keep.
        a_token += (1 + model.mtp.num_layers) * (padded_vocab_size(model) // ranks) * (width + max(4, width))
        predictions, replay = _prediction_widths(model, stage.layers, an_input)
        a_token += predictions * width
        replayed = max(replayed, replay * width)
    return tokens * a_token, tokens * replayed


def _prediction_widths(model: ModelConfig, layers: range, an_input: int) -> tuple[int, int]:
    """Return how many numbers the prediction layers behind a stage's `layers` keep of a token, and the largest replay."""
    depths = model.mtp.num_layers
    numbers = range(layers.start, model.num_layers + depths)
    again = sum(is_recomputed(model.recompute, numbers, number) for number in numbers[len(layers) :])
    embedded = model.hidden_size // (model.parallel.tensor_model_parallel_size if model.parallel.sequence_parallel else 1)
    size = _layer_width(model, model.num_layers - 1) + 5 * embedded
    # A replay begins with the hidden states and the embedding.
    return (depths - again) * size + again * (an_input + embedded), size if again else 0


def _layer_width(model: ModelConfig, number: int) -> int:
    """Return how many numbers a rank keeps of a token in layer `number`."""
    m, ranks = model.moe, model.parallel.tensor_model_parallel_size
    whole, divided = _mixing_width(model, number)
    kind = model.blocks.feed_forward_of(number)
    if kind != "none":
        # Inputs of the norm and of the first matrix, and of the norm behind.
        whole += (2 + model.post_mlp_norm) * model.hidden_size
    if kind == "mlp" and number not in m.layers:
        divided += _mlp_width(model, model.ffn_width(number))
    elif kind == "mlp":
        whole += _expert_width(model)
        if m.shared_expert_intermediate_size is not None:
            divided += _mlp_width(model, m.shared_expert_intermediate_size)
            whole += model.hidden_size * m.shared_expert_gate  # what the gate is multiplied with
    return whole // (ranks if model.parallel.sequence_parallel else 1) + divided // ranks


def _mixing_width(model: ModelConfig, number: int) -> tuple[int, int]:
    """Return what the first half of a layer keeps of a token, apart: what belongs to tokens, and what ranks divide."""
    attention, whole = model.attention, (2 + model.post_attention_norm) * model.hidden_size
    match model.blocks.mixing_of(number):
        case "none":
            return 0, 0
        case "linear":
            return whole, 0
        case "mamba":
            return whole, _mamba_width(model)
        case "gated_delta":
            return whole, _delta_width(model)
        case "kimi_delta":
            # Two norms, and their outputs; what leads to the gates and to the decay.
            return whole + model.hidden_size + sum(model.delta.gates_down), _kimi_width(model)
        case "short_conv":
            # Both gates, what they multiply, before and after the convolution, and the output.
            return whole, 6 * model.hidden_size
        case "attention":
            # Queries, keys, values, the heads' output; a slice keeps keys and values of those before it: on average of half.
            divided = _attention_width(model) + _key_value_width(model) * (model.pipeline.num_slices - 1) // 2
            if attention.output_gate:
                # The gate, its sigmoid, and what that is multiplied with.
                divided += 3 * attention.num_attention_heads * attention.kv_channels
            if attention.mla.enabled:
                # Latent vectors before and after their norms; values are views of what the unrotated keys are copied from.
                whole += 2 * (attention.mla.kv_lora_rank + (attention.mla.q_lora_rank or 0)) + attention.mla.qk_pos_emb_head_dim
                divided += attention.num_attention_heads * attention.mla.qk_head_dim
            return whole, divided


def _mamba_width(model: ModelConfig) -> int:
    """Return what a mixer keeps of a token, counted as if all were of the compute dtype.

    The convolution's input, output and what silu makes of it, and the output; in fp32 the inputs of the products of the scan
    and of what follows it, what stands between tokens of a chunk, and the states of chunks.
    """
    m = model.mamba
    maps, pairs = m.num_groups * m.state_dim, (2 * m.num_heads + m.num_groups) * SCAN_CHUNK
    states = 2 * m.num_heads * m.state_dim * m.head_dim // SCAN_CHUNK
    in_fp32 = 10 * m.width + 4 * maps + states + pairs + 4 * m.num_heads
    return 3 * sum(m.blocks[1:4]) + m.width + 2 * in_fp32


def _delta_width(model: ModelConfig) -> int:
    """Return what a gated delta net keeps of a token, counted as if all were of the compute dtype.

    The convolution's input, output and what silu makes of it, and the output; in fp32 queries and keys for each value head as
    they come, of unit length, decayed and in the triangular system, values likewise, pairs of a chunk, and states of chunks.
    """
    d = model.delta
    keys, pairs = d.num_value_heads * d.key_head_dim, 5 * d.num_value_heads * SCAN_CHUNK
    states = 2 * keys * d.value_head_dim // SCAN_CHUNK
    return 3 * sum(d.blocks[:3]) + d.values + 2 * (10 * keys + 10 * d.values + states + pairs + 6 * d.num_value_heads)


def _kimi_width(model: ModelConfig) -> int:
    """Return what Kimi delta attention keeps of a token, counted as if all were of the compute dtype.

    As a gated delta net, but decays have channels, too, and for each halving of a chunk the later half keeps queries, keys and
    decays anew, and the earlier one keys and decays.
    """
    d = model.delta
    keys = (12 + 5 * (SCAN_CHUNK.bit_length() - 1) // 2) * d.decays
    pairs, states = 3 * d.num_value_heads * SCAN_CHUNK, 2 * d.decays * d.value_head_dim // SCAN_CHUNK
    return 3 * sum(d.read) + 2 * d.values + 2 * (keys + 5 * d.values + states + pairs + 6 * d.num_value_heads)


def _mlp_width(model: ModelConfig, width: int) -> int:
    """Return the numbers on both sides of the activation."""
    return width * (3 if model.activation in GATED_ACTIVATIONS else 2)


def _expert_width(model: ModelConfig) -> int:
    """Return the numbers that a token's experts keep of it, scores included."""
    m, tensor = model.moe, model.parallel.expert_tensor_parallel_size or model.parallel.tensor_model_parallel_size
    assert m.num_experts is not None
    width = m.ffn_hidden_size or model.ffn_hidden_size
    # Ranks that share an expert all have the row; what comes out of the activation is computed again.
    row = model.hidden_size * tensor + width * (2 if model.activation in GATED_ACTIVATIONS else 1)
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
    kept = [number for run in stretches(model.recompute, stage.layers) if not run.is_recomputed for number in run.layers]
    layers = sum(model.blocks.mixing_of(number) == "attention" for number in kept)
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
