"""What a run will do, computed from its container without starting anything: `plan_of` is the name to use.

Memory counts the large parts: weights, gradients, optimizer state, and the activations that the backward pass needs. The
first three are exact; activations count each tensor kept for the backward once, and leave out what the allocator and the
kernels hold for themselves.
"""

from dataclasses import dataclass

from primus.engine.config import ConfigContainer, ModelConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.config.model import GATED_ACTIVATIONS
from primus.engine.config.recompute import stretches
from primus.engine.model.size import padded_vocab_size, parameter_count, training_flops
from primus.engine.parallel.layout import Layout

__all__ = ["Memory", "Plan", "Stage", "plan_of"]

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
class Stage:
    """One pipeline stage; all of its ranks hold equally much."""

    number: int
    ranks: tuple[int, ...]
    layers: range
    parameters: int
    """On each rank."""
    memory: Memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run before it starts."""

    layout: Layout
    stages: tuple[Stage, ...]
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
        stages=tuple(_stage(config, layout, number) for number in range(layout.pipeline)),
        parameters=whole,
        microbatches=batch.num_microbatches(samples),
        iterations=config.train.train_iters,
        samples=samples,
        tokens=samples * model.seq_length,
        flops_per_iteration=training_flops(model, config.train.global_batch_size),
        checkpoints=_num_checkpoints(config),
        checkpoint_bytes=whole * (_BYTES[config.mixed_precision.params_dtype] + _state_bytes(config)),
    )


def _stage(config: ConfigContainer, layout: Layout, number: int) -> Stage:
    model = config.model
    per_stage = model.num_layers // layout.pipeline
    layers = range(number * per_stage, (number + 1) * per_stage)
    parameters = _parameters_of_rank(model, layers)
    replicas = layout.data * layout.context if config.ddp.use_distributed_optimizer else 1
    return Stage(
        number=number,
        ranks=tuple(rank for rank in range(layout.world_size) if layout.coordinates(rank).pp == number),
        layers=layers,
        parameters=parameters,
        memory=Memory(
            weights=parameters * _BYTES[config.mixed_precision.params_dtype],
            gradients=parameters * _BYTES[config.mixed_precision.grad_dtype],
            optimizer=-(-parameters // replicas) * _state_bytes(config),
            activations=_activation_bytes(config, layers, stages_behind=layout.pipeline - number),
        ),
    )


def _parameters_of_rank(model: ModelConfig, layers: range) -> int:
    """Return the parameters of one rank: matrices are divided over tensor-parallel ranks, norms and output biases are not."""
    size, ranks = parameter_count(model), model.parallel.tensor_model_parallel_size
    norms_of = 2 if model.normalization == "LayerNorm" else 1
    undivided = 2 * norms_of * model.hidden_size + 2 * model.hidden_size * model.add_bias_linear
    if model.attention.qk_norm == "model":
        undivided += 2 * norms_of * model.attention.kv_channels
    table = padded_vocab_size(model) * model.hidden_size
    count = len(layers) * ((size.layer - undivided) // ranks + undivided)
    if layers.start == 0:
        count += table // ranks + (size.embedding - table)
    if layers.stop == model.num_layers:
        # A tied output matrix is the table again, which a stage of its own needs a copy of.
        is_copy = model.tie_embeddings and layers.start > 0
        count += size.final_norm + (table if is_copy else size.output) // ranks
    return count


def _state_bytes(config: ConfigContainer) -> int:
    """Return the bytes of optimizer state a parameter: moments, and a main copy where weights have less than fp32."""
    precision = _BYTES[config.mixed_precision.params_dtype]
    each = max(4, precision)
    has_momentum = config.optimizer.optimizer != "sgd" or config.optimizer.sgd_momentum > 0
    return each * (_STATES[config.optimizer.optimizer] * has_momentum + (precision < 4))


def _activation_bytes(config: ConfigContainer, layers: range, *, stages_behind: int) -> int:
    """Return what the forward passes that await their backward keep."""
    model, attention = config.model, config.model.attention
    ranks = model.parallel.tensor_model_parallel_size
    tokens = config.train.micro_batch_size * model.seq_length // model.parallel.context_parallel_size
    q, kv = (heads * attention.kv_channels for heads in (attention.num_attention_heads, attention.num_query_groups))
    gate_and_up = model.ffn_hidden_size * (2 if model.activation in GATED_ACTIVATIONS else 1)
    # Inputs of two norms and two matrices; queries, keys, values, the heads' output; both sides of the activation.
    whole = 4 * model.hidden_size // (ranks if model.parallel.sequence_parallel else 1)
    divided = (2 * q + 2 * kv + gate_and_up + model.ffn_hidden_size) // ranks
    if attention.backend in ("unfused", "local") and model.recompute.granularity != "selective":
        divided += 2 * attention.num_attention_heads * model.seq_length // ranks
    width = _BYTES[config.mixed_precision.params_dtype]
    is_divided = model.parallel.sequence_parallel or model.recompute.distribute_saved_activations
    an_input = model.hidden_size // (ranks if is_divided else 1)
    runs = [(len(stretch.layers) * (whole + divided), stretch.is_recomputed) for stretch in stretches(model.recompute, layers)]
    a_token = sum(an_input if is_recomputed else size for size, is_recomputed in runs) * width
    replayed = max((size for size, is_recomputed in runs if is_recomputed), default=0) * width
    if layers.stop == model.num_layers:
        # The logits and their softmax in fp32.
        a_token += padded_vocab_size(model) // ranks * (width + max(4, width))
    return tokens * (a_token * stages_behind + replayed)


def _num_checkpoints(config: ConfigContainer) -> int:
    save, interval = config.checkpoint, config.checkpoint.save_interval
    if save.save is None:
        return 0
    regular = config.train.train_iters // interval if interval else 0
    is_last_extra = not save.disable_last_saving and (not interval or config.train.train_iters % interval != 0)
    return regular + is_last_extra
