"""What a run will do, computed from its container without starting anything: `plan_of` is the name to use.

Memory counts the large parts: weights, gradients, optimizer state, and the activations that the backward pass needs. The
first three are exact but for the padding of gradient buckets; activations count each tensor kept for the backward once, and
leave out what the allocator and the kernels hold for themselves.
"""

from dataclasses import dataclass

from primus.engine.config import ConfigContainer, ModelConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.config.model import GATED_ACTIVATIONS
from primus.engine.config.pipeline import stage_of
from primus.engine.config.recompute import stretches
from primus.engine.model.size import padded_vocab_size, parameter_count, training_flops
from primus.engine.parallel.layout import Layout
from primus.engine.pipeline.schedules import Row, schedule_of

__all__ = ["Memory", "Place", "Plan", "plan_of"]

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_STATES = {"adam": 2, "sgd": 1}
"""Tensors of optimizer state a parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on one rank."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One place in the pipeline; all ranks that stand there hold equally much."""

    number: int
    ranks: tuple[int, ...]
    layers: tuple[range, ...]
    """Of each model chunk."""
    has_embedding: bool
    has_output: bool
    parameters: int
    """On each rank."""
    memory: Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run before it starts."""

    layout: Layout
    places: tuple[Place, ...]
    parameters: int
    """Of the whole model."""
    microbatches: int
    """A rank accumulates in one step, at full batch size."""
    iterations: int
    samples: int
    tokens: int
    flops_per_iteration: int
    checkpoints: int
    """Written by the end of the run."""
    checkpoint_bytes: int
    """Size of one."""


def plan_of(config: ConfigContainer, world_size: int) -> Plan:
    """Return the plan of a run whose vocabulary size is known."""
    model = config.model
    layout = Layout.of(model.parallel, world_size)
    batch = BatchPlan.of(config.train, layout.data)
    samples = config.train.train_samples or batch.samples_of(config.train.train_iters)
    whole = parameter_count(model).total
    return Plan(
        layout=layout,
        places=_places(config, layout, batch.num_microbatches(samples)),
        parameters=whole,
        microbatches=batch.num_microbatches(samples),
        iterations=config.train.train_iters,
        samples=samples,
        tokens=samples * model.seq_length,
        flops_per_iteration=training_flops(model, config.train.global_batch_size),
        checkpoints=_num_checkpoints(config),
        checkpoint_bytes=whole * (_BYTES[config.mixed_precision.params_dtype] + _state_bytes(config)),
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """Layers that follow one another, with the ends of the model if they are its first or last."""

    layers: range
    is_first: bool
    is_last: bool
    is_copy: bool
    """Has an output matrix of its own that is tied to the embedding of another rank."""


def _places(config: ConfigContainer, layout: Layout, microbatches: int) -> tuple[Place, ...]:
    pipeline, size = config.model.pipeline, layout.pipeline
    layers = pipeline.stage_layers(config.model.num_layers, size)
    is_apart = config.model.tie_embeddings and size > 1 and pipeline.placement != "fold"
    stages = [_Stage(ls, g == 0, g == len(layers) - 1, is_apart and g > 0) for g, ls in enumerate(layers)]
    # Of an accelerator that nobody has seen yet.
    timed = pipeline.with_copy_time(config.model.hidden_size, config.model.seq_length)
    # A rank that is alone treats every microbatch like the first, and there may be very many.
    rows = schedule_of(timed, size, microbatches if size > 1 else 1).rows
    return tuple(
        _place(
            config,
            layout,
            number,
            [stages[stage_of(pipeline.placement, size, number, chunk)] for chunk in range(pipeline.num_chunks)],
            rows[number],
        )
        for number in range(size)
    )


def _place(config: ConfigContainer, layout: Layout, number: int, stages: list[_Stage], row: Row) -> Place:
    parameters = sum(_parameters_of(config.model, stage) for stage in stages)
    share, unit = _shares(config, layout, parameters), max(_largest_unit(config.model, stage) for stage in stages)
    return Place(
        number=number,
        ranks=tuple(rank for rank in range(layout.world_size) if layout.coordinates(rank).pp == number),
        layers=tuple(stage.layers for stage in stages),
        has_embedding=any(stage.is_first for stage in stages),
        has_output=any(stage.is_last for stage in stages),
        parameters=parameters,
        memory=Memory(
            weights=(share + unit if config.ddp.shards_weights else parameters) * _BYTES[config.mixed_precision.params_dtype],
            gradients=(share + unit if config.ddp.shards_gradients else parameters) * _BYTES[config.mixed_precision.grad_dtype],
            optimizer=share * _state_bytes(config),
            activations=_activation_bytes(config, stages, row),
        ),
    )


def _shares(config: ConfigContainer, layout: Layout, parameters: int) -> int:
    """Return how many of a rank's parameters it updates."""
    if not (config.ddp.use_distributed_optimizer or config.ddp.use_torch_fsdp2):
        return parameters
    ranks = layout.data * layout.context // config.model.parallel.num_distributed_optimizer_instances
    return -(-parameters // ranks)


def _parameters_of(model: ModelConfig, stage: _Stage) -> int:
    """Return the parameters of one rank: matrices are divided over tensor-parallel ranks, norms and output biases are not."""
    size = parameter_count(model)
    count = len(stage.layers) * _layer_parameters(model)
    if stage.is_first:
        count += _table_parameters(model) + (size.embedding - padded_vocab_size(model) * model.hidden_size)
    if stage.is_last:
        has_matrix = stage.is_copy or size.output
        count += size.final_norm + (_table_parameters(model) if has_matrix else 0)
    return count


def _largest_unit(model: ModelConfig, stage: _Stage) -> int:
    """Return the parameters of the largest part that sharded data parallelism holds whole at a time."""
    ends = _table_parameters(model) if stage.is_first or stage.is_last else 0
    return max(ends, _layer_parameters(model) if stage.layers else 0)


def _layer_parameters(model: ModelConfig) -> int:
    size, ranks = parameter_count(model), model.parallel.tensor_model_parallel_size
    norms_of = 2 if model.normalization == "LayerNorm" else 1
    undivided = 2 * norms_of * model.hidden_size + 2 * model.hidden_size * model.add_bias_linear
    if model.attention.qk_norm == "model":
        undivided += 2 * norms_of * model.attention.kv_channels
    return (size.layer - undivided) // ranks + undivided


def _table_parameters(model: ModelConfig) -> int:
    """Return a rank's part of the embedding, or of the output matrix."""
    return padded_vocab_size(model) * model.hidden_size // model.parallel.tensor_model_parallel_size


def _state_bytes(config: ConfigContainer) -> int:
    """Return the bytes of optimizer state a parameter: moments, and a main copy where weights have less than fp32."""
    precision = _BYTES[config.mixed_precision.params_dtype]
    each = max(4, precision)
    has_momentum = config.optimizer.optimizer != "sgd" or config.optimizer.sgd_momentum > 0
    return each * (_STATES[config.optimizer.optimizer] * has_momentum + (precision < 4))


def _activation_bytes(config: ConfigContainer, stages: list[_Stage], row: Row) -> int:
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


def _microbatch_bytes(config: ConfigContainer, stage: _Stage) -> tuple[int, int]:
    """Return what one microbatch, or a slice of it, keeps, and what its largest replay holds besides."""
    model, attention = config.model, config.model.attention
    ranks = model.parallel.tensor_model_parallel_size
    slices = model.pipeline.num_slices
    tokens, kv = _tokens(config), attention.num_query_groups * attention.kv_channels
    gate_and_up = model.ffn_hidden_size * (2 if model.activation in GATED_ACTIVATIONS else 1)
    # Inputs of two norms and two matrices; queries, keys, values, the heads' output; both sides of the activation.
    whole = 4 * model.hidden_size // (ranks if model.parallel.sequence_parallel else 1)
    # A slice keeps keys and values of those before it, too: on average of half of them.
    divided = (_attention_width(model) + kv * (slices - 1) + gate_and_up + model.ffn_hidden_size) // ranks
    width = _BYTES[config.mixed_precision.params_dtype]
    is_divided = model.parallel.sequence_parallel or model.recompute.distribute_saved_activations
    an_input = model.hidden_size // (ranks if is_divided else 1)
    runs = [
        (len(stretch.layers) * (whole + divided), stretch.is_recomputed) for stretch in stretches(model.recompute, stage.layers)
    ]
    a_token = sum(an_input if is_recomputed else size for size, is_recomputed in runs) * width
    replayed = max((size for size, is_recomputed in runs if is_recomputed), default=0) * width
    if stage.is_last:
        # The logits and their softmax in fp32.
        a_token += padded_vocab_size(model) // ranks * (width + max(4, width))
    return tokens * a_token, tokens * replayed


def _postponed_bytes(config: ConfigContainer, stage: _Stage) -> int:
    """Return what a microbatch, or a slice of it, leaves behind for the output layer's weight gradient at the step's end."""
    model = config.model
    if not (stage.is_last and model.pipeline.postpone_output_gradient):
        return 0
    tokens = config.train.micro_batch_size * model.seq_length // model.parallel.context_parallel_size
    features = padded_vocab_size(model) // model.parallel.tensor_model_parallel_size + model.hidden_size
    return tokens // model.pipeline.num_slices * features * _BYTES[config.mixed_precision.params_dtype]


def _attention_bytes(config: ConfigContainer, stage: _Stage) -> int:
    """Return what core attention keeps of one microbatch, its output included."""
    model = config.model
    layers = sum(len(run.layers) for run in stretches(model.recompute, stage.layers) if not run.is_recomputed)
    width = _BYTES[config.mixed_precision.params_dtype]
    return _tokens(config) * layers * (_attention_width(model) // model.parallel.tensor_model_parallel_size) * width


def _attention_width(model: ModelConfig) -> int:
    """Return how many numbers that is for a token, over all tensor-parallel ranks: q, k, v, the output, and explicit scores."""
    attention = model.attention
    width = 2 * (attention.num_attention_heads + attention.num_query_groups) * attention.kv_channels
    if attention.backend in ("unfused", "local") and model.recompute.granularity != "selective":
        width += 2 * attention.num_attention_heads * model.seq_length
    return width


def _tokens(config: ConfigContainer) -> int:
    """Return the tokens of a microbatch, or of a slice of it, on one rank."""
    parts = config.model.parallel.context_parallel_size * config.model.pipeline.num_slices
    return config.train.micro_batch_size * config.model.seq_length // parts


def _num_checkpoints(config: ConfigContainer) -> int:
    save, interval = config.checkpoint, config.checkpoint.save_interval
    if save.save is None:
        return 0
    regular = config.train.train_iters // interval if interval else 0
    is_last_extra = not save.disable_last_saving and (not interval or config.train.train_iters % interval != 0)
    return regular + is_last_extra
