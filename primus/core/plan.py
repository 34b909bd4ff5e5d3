"""What a run will do, computed from its container without starting anything: `plan_of` is the name to use.

Memory counts the large parts: weights, gradients, optimizer state, and activations (`activations.py`). The first three are
exact but for the padding of gradient buckets.
"""

from dataclasses import dataclass

from primus.core.activations import WIDTHS, Stage, activation_bytes
from primus.engine.config import ConfigContainer, ModelConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.config.pipeline import stage_of
from primus.engine.model.adapter_size import AdapterSizes, adapter_sizes
from primus.engine.model.flops import training_flops
from primus.engine.model.size import LayerSize, ModelSize, padded_vocab_size, parameter_count
from primus.engine.parallel.layout import Layout
from primus.engine.pipeline.schedules import Row, schedule_of

__all__ = ["Memory", "Place", "Plan", "plan_of"]

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
    """Of the whole model, adapters included."""
    trained: int
    """Of these, the ones that are trained: adapters alone, where there are any."""
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
    base = parameter_count(model).total
    added = 0 if config.peft is None else adapter_sizes(config.peft, model).total
    trained = added or base
    return Plan(
        layout=layout,
        places=_places(config, layout, batch.num_microbatches(samples)),
        parameters=base + added,
        trained=trained,
        microbatches=batch.num_microbatches(samples),
        iterations=config.train.train_iters,
        samples=samples,
        tokens=samples * model.seq_length,
        flops_per_iteration=training_flops(model, config.train.global_batch_size, config.peft),
        checkpoints=_num_checkpoints(config),
        checkpoint_bytes=trained * (WIDTHS[config.mixed_precision.params_dtype] + _state_bytes(config)),
    )


def _places(config: ConfigContainer, layout: Layout, microbatches: int) -> tuple[Place, ...]:
    pipeline, size = config.model.pipeline, layout.pipeline
    layers = pipeline.stage_layers(config.model.num_layers, size)
    needs_both = config.model.tie_embeddings or config.model.mtp.num_layers > 0
    is_apart = needs_both and size > 1 and pipeline.placement != "fold"
    stages = [Stage(ls, g == 0, g == len(layers) - 1, is_apart and g == len(layers) - 1) for g, ls in enumerate(layers)]
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


def _place(config: ConfigContainer, layout: Layout, number: int, stages: list[Stage], row: Row) -> Place:
    base, trained, unit = _base(config.model, stages), _trained(config, stages), _largest_unit(config.model, stages)
    held, gradients = (base, base) if trained is None else (base + trained, trained)
    share, gradient_unit = _shares(config, layout, gradients), unit if trained is None else 0
    weights = _shares(config, layout, held) + unit if config.ddp.shards_weights else held.total
    return Place(
        number=number,
        ranks=tuple(rank for rank in range(layout.world_size) if layout.coordinates(rank).pp == number),
        layers=tuple(stage.layers for stage in stages),
        has_embedding=any(stage.is_first for stage in stages),
        has_output=any(stage.is_last for stage in stages),
        parameters=held.total,
        memory=Memory(
            weights=weights * WIDTHS[config.mixed_precision.params_dtype],
            gradients=(share + gradient_unit if config.ddp.shards_gradients else gradients.total)
            * WIDTHS[config.mixed_precision.grad_dtype],
            optimizer=share * _state_bytes(config),
            activations=activation_bytes(config, stages, row),
        ),
    )


def _shares(config: ConfigContainer, layout: Layout, held: "_Held") -> int:
    """Return how many of these a rank has alone: a share of its experts, which other ranks hold, and of the rest."""
    if not (config.ddp.use_distributed_optimizer or config.ddp.use_torch_fsdp2):
        return held.total
    instances = config.model.parallel.num_distributed_optimizer_instances
    dense, experts = layout.data * layout.context // instances, layout.sizes("expert")["dp"] // instances
    return -(-held.dense // dense) - (-held.experts // max(1, experts))


@dataclass(frozen=True, slots=True)
class _Held:
    """Parameters on one rank."""

    dense: int
    experts: int

    @property
    def total(self) -> int:
        return self.dense + self.experts

    def __add__(self, other: "_Held") -> "_Held":
        return _Held(self.dense + other.dense, self.experts + other.experts)


def _base(model: ModelConfig, stages: list[Stage]) -> _Held:
    """Return the weights of one rank that has these stages, without adapters."""
    size = parameter_count(model)
    layers = _layers(size, stages)
    dense = sum(layer.dense_on_rank(model.parallel) for layer in layers)
    for stage in stages:
        if stage.is_first:
            dense += _table_parameters(model) + (size.embedding - padded_vocab_size(model) * model.hidden_size)
        if stage.is_last:
            tables = bool(size.output) + stage.is_copy
            dense += size.final_norm + tables * _table_parameters(model)
    return _Held(dense, sum(layer.experts_on_rank(model.parallel) for layer in layers))


def _trained(config: ConfigContainer, stages: list[Stage]) -> _Held | None:
    """Return the adapters of one rank that has these stages; None: all weights are trained."""
    if config.peft is None:
        return None
    layers, parallel = _layers(adapter_sizes(config.peft, config.model), stages), config.model.parallel
    return _Held(
        sum(layer.dense_on_rank(parallel) for layer in layers), sum(layer.experts_on_rank(parallel) for layer in layers)
    )


def _layers(size: ModelSize | AdapterSizes, stages: list[Stage]) -> list[LayerSize]:
    """Return the layers of a rank, those behind the model's last one included."""
    layers = [size.layers[number] for stage in stages for number in stage.layers]
    return [*layers, *size.predictions] if any(stage.is_last for stage in stages) else layers


def _largest_unit(model: ModelConfig, stages: list[Stage]) -> int:
    """Return the parameters of the largest part that sharded data parallelism holds whole at a time."""
    size, parallel = parameter_count(model), model.parallel
    layers = _layers(size, stages)
    has_end = any(stage.is_first or stage.is_last for stage in stages)
    ends = _table_parameters(model) if has_end else 0
    if any(stage.is_last for stage in stages):
        ends += sum(each.dense_on_rank(parallel) + each.experts_on_rank(parallel) for each in size.predictions)
    return max([ends, *(layer.dense_on_rank(parallel) + layer.experts_on_rank(parallel) for layer in layers)])


def _table_parameters(model: ModelConfig) -> int:
    """Return a rank's part of the embedding, or of the output matrix."""
    return padded_vocab_size(model) * model.hidden_size // model.parallel.tensor_model_parallel_size


def _state_bytes(config: ConfigContainer) -> int:
    """Return the bytes of optimizer state a parameter: moments, and a main copy where weights have less than fp32."""
    precision = WIDTHS[config.mixed_precision.params_dtype]
    each = max(4, precision)
    has_momentum = config.optimizer.optimizer != "sgd" or config.optimizer.sgd_momentum > 0
    return each * (_STATES[config.optimizer.optimizer] * has_momentum + (precision < 4))


def _num_checkpoints(config: ConfigContainer) -> int:
    save, interval = config.checkpoint, config.checkpoint.save_interval
    if save.save is None:
        return 0
    regular = config.train.train_iters // interval if interval else 0
    is_last_extra = not save.disable_last_saving and (not interval or config.train.train_iters % interval != 0)
    return regular + is_last_extra
