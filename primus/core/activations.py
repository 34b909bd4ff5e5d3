"""What forward and backward passes hold on one rank at their peak, in bytes: an estimate from the configuration.

Each tensor counts once; what the allocator and the kernels hold for themselves is left out. Tokens are taken to spread evenly
over experts, and all of them to have a loss.
"""

from dataclasses import dataclass

from primus.core.layer_activations import Adapted, LayerBytes
from primus.engine.config import ConfigContainer, PEFTConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.recompute import is_recomputed, stretches
from primus.engine.model.adapter_size import adapted_inputs, adapted_outputs
from primus.engine.model.size import padded_vocab_size
from primus.engine.pipeline.schedules import Row

__all__ = ["WIDTHS", "Stage", "activation_bytes"]

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
_LOSS_TOKENS, _LOSS_BYTES = 256, 16 * 2**20
"""A chunk of the fused loss has so many tokens at least, else so many bytes of logits."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers that follow one another, with the ends of the model if they are its first or last."""

    layers: range
    is_first: bool
    is_last: bool
    is_copy: bool
    """Has a table of its own that is tied to the embedding of another rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Microbatch:
    """Bytes of one microbatch, or of a slice of it, on a stage."""

    kept: int
    """From its forward to its backward."""
    loss: int
    """Of that, what the loss keeps, which its backward uses up first."""
    forward: int
    """What the end of the forward holds besides."""
    backward: int
    """What the backward holds besides at its peak."""
    moved: int
    """Of what is kept, what offloading takes to the host."""
    postponed: int
    """What waits for the output layer's weight gradient at the step's end."""


def activation_bytes(config: ConfigContainer, stages: list[Stage], row: Row) -> int:
    """Return the most that forwards and backwards hold at any moment of a step."""
    chunks = [_Stage(config, stage).microbatch() for stage in stages]
    limit = config.model.pipeline.output_gradient_limit * config.model.pipeline.num_slices or len(row)
    releases = "W" if any(op.kind == "W" for op in row) else "B"
    alive, peak, count = 0, 0, 0
    for op in row:
        chunk = chunks[op.chunk]
        alive += chunk.kept * (op.kind == "F") + chunk.moved * ((op.kind == "R") - (op.kind == "O"))
        besides = chunk.forward * (op.kind == "F") + (chunk.backward - chunk.loss) * (op.kind == "B")
        peak = max(peak, alive + besides)
        alive -= chunk.kept * (op.kind == releases)
        if op.kind == "B" and count < limit:
            alive, count = alive + chunk.postponed, count + bool(chunk.postponed)
    return max(peak, alive)


def _adapted(peft: PEFTConfig, model: ModelConfig) -> Adapted:
    outputs, drops = adapted_outputs(peft, model), peft.dropout_position if peft.dropout else None
    inputs = adapted_inputs(peft, model) if drops == "pre" else {}
    return Adapted(outputs, peft.dim, rescales=peft.scheme == "dora", drops=drops, inputs=inputs)


class _Stage:
    """Counts what a stage holds of a microbatch."""

    def __init__(self, config: ConfigContainer, stage: Stage) -> None:
        self._config, self._stage, self._model = config, stage, config.model
        model, train = config.model, config.train
        peft = config.peft
        found = None if peft is None else _adapted(peft, model)
        numbers = (int(name.split(".")[2]) for name in (found.linears if found else ()) if name.startswith("decoder."))
        # Nothing from the model's start up to the first adapter has a gradient.
        self._first = min(numbers, default=model.num_layers) if found and stage.is_first else 0
        self._layer = LayerBytes(model, WIDTHS[config.mixed_precision.params_dtype], train.micro_batch_size, found)
        parts = model.parallel.context_parallel_size * model.pipeline.num_slices
        self._tokens = train.micro_batch_size * model.seq_length // parts
        self._is_alone = model.parallel.pipeline_model_parallel_size == 1

    def microbatch(self) -> _Microbatch:
        """Return what it holds."""
        layers, replayed = self._layers()
        loss, forward = self._loss()
        kept = self._tokens * layers + loss
        offload = self._model.pipeline.offload.tensors
        return _Microbatch(
            kept=kept,
            loss=loss,
            forward=forward,
            backward=self._tokens * replayed,
            moved=self._tokens * self._attention() if offload == "attn" else kept,
            postponed=self._postponed(),
        )

    def _layers(self) -> tuple[int, int]:
        """Return what the layers keep of a token, and what their backwards hold besides, replays included."""
        layer, stage, model = self._layer, self._stage, self._model
        ranks = model.parallel.tensor_model_parallel_size
        an_input = layer.stream
        if model.recompute.distribute_saved_activations and not model.parallel.sequence_parallel:
            an_input //= ranks
        kept, besides = 0, 0
        for run in stretches(model.recompute, stage.layers):
            numbers = [number for number in run.layers if number >= self._first]
            whole, beside = sum(map(layer.kept, numbers)), max(map(layer.beside, numbers), default=0)
            kept += an_input if run.is_recomputed and numbers else whole
            besides = max(besides, beside + whole * run.is_recomputed)
        if not stage.is_first and layer.narrow < layer.wide and not model.fp32_residual_connection:
            # What arrived, beside the wide copy of it that the first norm reads.
            kept += layer.stream
        if stage.is_last and model.mtp.num_layers:
            predicted, beside = self._predictions(an_input)
            kept, besides = kept + predicted, max(besides, beside)
        # The gradient that arrives and the one awaited next, and the one that leaves.
        messages = 0 if self._is_alone else 2 * (not stage.is_last) + (not stage.is_first)
        return kept, besides + messages * layer.stream

    def _predictions(self, an_input: int) -> tuple[int, int]:
        """Return what the prediction layers behind the stage's last layer keep of a token, and the largest replay."""
        model, layer, depths = self._model, self._layer, self._model.mtp.num_layers
        numbers = range(self._stage.layers.start, model.num_layers + depths)
        again = sum(is_recomputed(model.recompute, numbers, number) for number in numbers[-depths:])
        # Norms of the hidden states, of the embedding and of the outcome, and both together before their projection.
        size, beside = layer.kept(model.num_layers - 1) + 3 * layer.normed(), layer.beside(model.num_layers - 1)
        # A replay begins with the hidden states and the embedding.
        return (depths - again) * size + again * (an_input + layer.stream), beside + size * bool(again)

    def _loss(self) -> tuple[int, int]:
        """Return what final norm and loss keep of a microbatch, and what they hold besides at their end."""
        model, layer, tokens = self._model, self._layer, self._tokens
        if not self._stage.is_last:
            return 0, 0
        parallel, in_fp16 = model.parallel, self._config.mixed_precision.cross_entropy_in_fp16
        narrow, wide = layer.narrow, layer.narrow if in_fp16 else layer.wide
        columns = padded_vocab_size(model) // parallel.tensor_model_parallel_size
        is_trained, depths = layer.adapted is None, 1 + model.mtp.num_layers
        hidden = tokens * narrow * model.hidden_size
        normed = tokens * layer.normed()
        # Logits in fp32 where they have less.
        a_row = columns * (narrow + wide * (narrow < wide))
        if in_fp16 or not model.fusion.cross_entropy:
            return normed + depths * tokens * columns * wide, tokens * columns * narrow * (narrow < wide)
        rows = min(tokens, max(_LOSS_TOKENS, _LOSS_BYTES // (wide * columns)))
        if model.pipeline.defers_output_gradient and is_trained:
            kept = depths * (2 * hidden + tokens * columns * narrow)
            return normed + kept, rows * columns * wide * (narrow < wide)
        kept = depths * (hidden + wide * columns * model.hidden_size * is_trained)
        is_gathered = parallel.sequence_parallel and parallel.tensor_model_parallel_size > 1
        return normed + kept, rows * a_row + hidden * is_gathered

    def _postponed(self) -> int:
        model = self._model
        if not (self._stage.is_last and model.pipeline.postpone_output_gradient):
            return 0
        features = padded_vocab_size(model) // model.parallel.tensor_model_parallel_size + model.hidden_size
        return self._tokens * features * self._layer.narrow

    def _attention(self) -> int:
        """Return what core attention keeps of a token, its output included."""
        model = self._model
        kept = [
            number for run in stretches(model.recompute, self._stage.layers) if not run.is_recomputed for number in run.layers
        ]
        return self._layer.core_attention() * sum(model.blocks.mixing_of(number) == "attention" for number in kept)
