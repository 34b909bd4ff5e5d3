"""`assemble` puts the trainable side of a run together in one readable order; nothing else decides what wraps what.

random streams -> model with declared shardings -> adapters -> flat weights and gradients -> optimizer -> restored checkpoint
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from primus.engine.checkpoint.fingerprint import fingerprint
from primus.engine.checkpoint.load import Loaded, load_checkpoint
from primus.engine.checkpoint.progress import Progress
from primus.engine.checkpoint.rng import capture_rng, restore_rng
from primus.engine.checkpoint.save import Contents, save_checkpoint, save_non_persistent
from primus.engine.checkpoint.start import Start, find_base
from primus.engine.checkpoint.state import TrainState
from primus.engine.checkpoint.upcycle import UpcycledSource
from primus.engine.config import ConfigContainer, serialize
from primus.engine.kernels.pick import portable_notice
from primus.engine.model.builder import LossForm, build_model, model_place
from primus.engine.model.gpt import GPTModel
from primus.engine.model.initialise import initialise_parameter
from primus.engine.model.moe.upcycling import Upcycling
from primus.engine.optim.build import build_optimizer
from primus.engine.optim.optimizer import Optimizer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.fsdp2 import FullyShardedDataParallel
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Shards, buffer_shards, global_parameters, trainable_names, weight_shards
from primus.engine.peft.apply import apply_peft, sizes
from primus.engine.peft.magnitude import set_magnitudes
from primus.engine.precision import dtype_of

__all__ = ["Parts", "Trainer", "assemble"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """What changes the weights."""

    buffers: DataParallel
    optimizer: Optimizer


@dataclass(kw_only=True, slots=True)
class Parts:
    """The trainable side of a run on this rank."""

    config: ConfigContainer
    mesh: Mesh
    streams: RandomStreams
    chunks: tuple[GPTModel, ...]
    """Its pipeline stages."""
    trainer: Trainer | None
    """None under `skip_train`: an evaluation needs the weights alone."""
    state: TrainState
    progress: Progress | None
    """`progress.txt`; None where it is not kept."""
    base: Mapping[str, Any] | None = None
    """What adapters stand beside: `path`, and `fingerprints` by dtype; None: all weights are trained."""

    def save(self) -> Path:
        """Write a checkpoint of this very moment."""
        return save_checkpoint(self.config.checkpoint, self._contents(), mesh=self.mesh, progress=self.progress)

    def save_non_persistent(self) -> Path:
        """Write a checkpoint of this very moment that the next of its kind replaces."""
        return save_non_persistent(self.config.checkpoint, self._contents(), mesh=self.mesh)

    def _contents(self) -> Contents:
        assert self.trainer is not None
        self.trainer.buffers.finish_param_gather()
        return Contents(
            state=self.state,
            model=_trained_shards(self),
            optimizer=self.trainer.optimizer.state_shards(),
            optimizer_common=self.trainer.optimizer.common_state(),
            rng=capture_rng(self.streams, self.mesh.device),
            container=serialize.to_dict(self.config),
            base=self.base,
        )


def assemble(config: ConfigContainer, mesh: Mesh, start: Start | None) -> Parts:
    """Build everything that is trained, and restore it if the run starts from a checkpoint."""
    precision, dtype = config.mixed_precision, dtype_of(config.mixed_precision.params_dtype)
    own = 10 * mesh.coordinates.dp if config.rng.data_parallel_random_init else 0
    streams = RandomStreams(config.rng.seed + own, mesh.coordinates, mesh.device)
    chunks = build_model(
        config.model,
        mesh=mesh,
        dtype=dtype,
        device=mesh.device,
        seed=config.rng.seed,
        streams=streams,
        loss=LossForm(in_fp16=precision.cross_entropy_in_fp16, is_sparse=config.dataset.sft is not None),
    )
    if config.peft is not None:
        place = model_place(config.model, mesh=mesh, dtype=dtype, device=mesh.device, streams=streams)
        apply_peft(chunks, config.peft, config.model, place=place, mesh=mesh, seed=config.rng.seed)
    if notice := portable_notice(config.model.fusion, mesh.device.type, dtype):
        log.info("%s", notice)
    parts = Parts(
        config=config,
        mesh=mesh,
        streams=streams,
        chunks=chunks,
        trainer=None if config.train.skip_train else _trainer(config, chunks, mesh),
        state=TrainState(),
        progress=None,
    )
    # A rehearsal has no values.
    if config.peft is not None and mesh.device.type != "meta":
        log.info("peft %s: %s", config.peft.scheme, sizes(chunks, config.model, mesh))
        _take_base(parts)
    if start is not None:
        _restore(parts, start)
    parts.progress = _progress(parts)
    return parts


def _trainer(config: ConfigContainer, chunks: tuple[GPTModel, ...], mesh: Mesh) -> Trainer:
    buffers = _data_parallel(config, chunks, mesh)
    optimizer = build_optimizer(
        config.optimizer,
        config.mixed_precision,
        scheduler=config.scheduler,
        buffers=buffers,
        mesh=mesh,
        check_finite=config.train.check_for_nan_in_loss_and_grad,
        first_chunk_apart=config.ddp.overlap_param_gather_with_optimizer_step,
    )
    return Trainer(buffers=buffers, optimizer=optimizer)


def _data_parallel(config: ConfigContainer, chunks: tuple[GPTModel, ...], mesh: Mesh) -> DataParallel:
    grad_dtype = dtype_of(config.mixed_precision.grad_dtype)
    per_token = config.train.calculate_per_token_loss
    units = [chunk.units() for chunk in chunks]
    fill = partial(initialise_parameter, seed=config.rng.seed, division=mesh) if config.model.init.perform else None
    if config.ddp.use_torch_fsdp2 and mesh.intra_dp_cp.size > 1:
        return FullyShardedDataParallel(chunks[0], units[0], mesh, grad_dtype=grad_dtype, per_token=per_token, fill=fill)
    buffers = GradientBuffers(chunks, config.ddp, mesh, grad_dtype=grad_dtype, per_token=per_token, units=units, fill=fill)
    pipeline = config.model.pipeline
    for chunk in chunks:
        head = None if chunk.output_layer is None else chunk.output_layer.weight
        if head is not None and head.requires_grad and pipeline.postpone_output_gradient:
            buffers.postpone(head, limit=pipeline.output_gradient_limit * pipeline.num_slices)
    return buffers


def _take_base(parts: Parts) -> None:
    """Load what adapters stand beside, and tell which weights it is: what a run resumes was trained on these and no others."""
    checkpoint, dtype = parts.config.checkpoint, parts.config.mixed_precision.params_dtype
    start, trained = find_base(checkpoint), _trained_shards(parts)
    frozen = {name: shards for name, shards in _model_shards(parts).items() if name not in trained}
    if start is not None:
        loaded = load_checkpoint(
            start,
            checkpoint,
            model=frozen,
            optimizer={},
            container=serialize.to_dict(parts.config),
            mesh=parts.mesh,
            on_weights=_nothing,
        )
        _tell(start, loaded)
    else:
        log.warning("adapters stand beside random weights: neither pretrained_checkpoint nor hf_path is set")
    parts.base = {
        "path": None if start is None else str(start.folder),
        "fingerprints": {str(dtype_of(dtype)): fingerprint(frozen, parts.mesh.world)},
    }
    # Of the weights that adapters start from; what a run resumes comes over them.
    set_magnitudes(parts.chunks, _model_shards(parts), parts.mesh)


def _restore(parts: Parts, start: Start) -> None:
    trainer = parts.trainer
    recipe = Upcycling.of(parts.config.model) if start.weights_only else None
    loaded = load_checkpoint(
        start if trainer else replace(start, load_optim=False),
        parts.config.checkpoint,
        model=_trained_shards(parts),
        optimizer=trainer.optimizer.state_shards() if trainer else {},
        container=serialize.to_dict(parts.config),
        mesh=parts.mesh,
        on_weights=trainer.optimizer.reload_model_params if trainer else _nothing,
        adapt=lambda source: source if recipe is None else UpcycledSource(source, recipe),
        base=parts.base,
    )
    parts.state = loaded.state
    if trainer is None:
        # An evaluation alone begins at the first sample, so that its value does not depend on when it is asked for.
        parts.state.consumed_valid_samples = 0
    elif loaded.optimizer_common is not None:
        trainer.optimizer.load_common_state(loaded.optimizer_common)
    if loaded.rng is not None:
        restore_rng(dict(loaded.rng), parts.streams, parts.mesh.device)
    _tell(start, loaded)


def _tell(start: Start, loaded: Loaded) -> None:
    for notice in start.notices:
        log.warning("%s", notice)
    for line in loaded.report:
        log.warning("%s", line) if line.startswith("NOT") else log.info("%s", line)


def _trained_shards(parts: Parts) -> dict[str, Shards]:
    """Return what a checkpoint of the run holds: with adapters nothing else, since all else is the base's."""
    shards = _model_shards(parts)
    if parts.config.peft is None:
        return shards
    trained = trainable_names(parts.chunks)
    return {name: one for name, one in shards.items() if name in trained}


def _model_shards(parts: Parts) -> dict[str, Shards]:
    trainer, chunks = parts.trainer, parts.chunks
    weights = trainer.buffers.weight_shards() if trainer else weight_shards(global_parameters(chunks), parts.mesh)
    return {**weights, **buffer_shards(chunks)}


def _progress(parts: Parts) -> Progress | None:
    config = parts.config
    if not config.logger.log_progress or config.checkpoint.save is None or parts.mesh.rank != 0:
        return None
    flops = parts.state.num_floating_point_operations_so_far
    progress = Progress(Path(config.checkpoint.save), world_size=parts.mesh.world.size, flops=flops)
    progress.started()
    return progress


def _nothing() -> None:
    """Do nothing."""
