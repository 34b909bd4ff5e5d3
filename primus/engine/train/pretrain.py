"""`pretrain`: a container file's pretraining on this rank, from tokenizer to final checkpoint.

Everything that can be wrong with the input is looked at before the rank joins the others.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from primus.engine.cause import noting_time
from primus.engine.checkpoint.hf.fit import unfit
from primus.engine.checkpoint.local import newest_start
from primus.engine.checkpoint.start import Start, find_start
from primus.engine.config import ConfigContainer, serialize
from primus.engine.config.batch import BatchPlan
from primus.engine.data.tokenizer import Tokenizer, build_tokenizer
from primus.engine.model.flops import training_cost
from primus.engine.model.size import parameter_count
from primus.engine.observe.profiler import Profiler
from primus.engine.observe.timers import TimerReport
from primus.engine.optim.watch import GradientWatch, SpikeWatch
from primus.engine.parallel.communicator import without_effect
from primus.engine.parallel.mesh import Mesh, build_mesh
from primus.engine.pipeline.pipeline import build_pipeline
from primus.engine.trace import Spans, Trace
from primus.engine.train.assemble import Parts, Trainer, assemble
from primus.engine.train.callbacks.collection import GarbageCollection
from primus.engine.train.callbacks.evaluation import Evaluation
from primus.engine.train.callbacks.logging import Logging
from primus.engine.train.callbacks.memory import MemoryProfile
from primus.engine.train.callbacks.pipeline_times import PipelineTimes
from primus.engine.train.callbacks.profiling import Profiling
from primus.engine.train.callbacks.replicas import ReplicaCheck
from primus.engine.train.callbacks.saving import Saving
from primus.engine.train.callbacks.stop import Stopping
from primus.engine.train.capacity import check_capacity
from primus.engine.train.determinism import be_deterministic
from primus.engine.train.feeds import Feeds, Sources
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.predictions import Predictions
from primus.engine.train.routers import Routers
from primus.engine.train.sinks import open_sinks
from primus.engine.train.stages import Stages
from primus.engine.train.step import TrainStep
from primus.engine.train.tuning import TuningSources
from primus.engine.train.validation import Validation
from primus.engine.train.warmup import warm_up
from primus.errors import InputError
from primus.run_config import accept_config

__all__ = ["build_loop", "build_stages", "build_step", "choose_device", "pretrain", "with_vocabulary"]

log = logging.getLogger(__name__)


def pretrain(config: ConfigContainer, *, process_start: float) -> None:
    """Train; `process_start` is when the process began, in seconds since the epoch."""
    tokenizer = build_tokenizer(config.tokenizer)
    config = with_vocabulary(config, tokenizer)
    start = find_start(config.checkpoint, adapters=config.peft is not None)
    if problems := unfit(config):
        raise InputError(problems)
    if config.rng.deterministic_mode:
        be_deterministic()
    agreed = {
        "configuration (start all from one file with the same overrides)": serialize.dump(config),
        "checkpoint to start from (all must see the same folders)": str(start.folder) if start else "none",
    }
    mesh = build_mesh(config.model.parallel, config.dist, choose_device(), agreed=agreed)
    with noting_time():
        _run(config, tokenizer, newest_start(start, config.checkpoint, mesh), mesh, process_start)
    # Only after a good end: NCCL would wait for what is under way, and a rank that fails has to leave and say why.
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_device() -> torch.device:
    """Return this rank's accelerator, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise InputError(f"process {number} of this machine has no device: there are {count}; start {count} processes at most")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    return device


def with_vocabulary(config: ConfigContainer, tokenizer: Tokenizer) -> ConfigContainer:
    """Return the configuration with the model's vocabulary filled in; InputError if the tokenizer has more ids."""
    size = config.model.vocab_size
    if size is not None and size < tokenizer.vocab_size:
        raise InputError(f"the tokenizer has {tokenizer.vocab_size:,d} ids, the model's vocab_size is {size:,d}")
    return replace(config, model=replace(config.model, vocab_size=size or tokenizer.vocab_size))


def _run(config: ConfigContainer, tokenizer: Tokenizer, start: Start | None, mesh: Mesh, process_start: float) -> None:
    log.info("model: %s, %s", parameter_count(config.model), _ranks(mesh))
    if mesh.world.size > 1:
        for line in without_effect(config.dist, mesh.device):
            log.info("%s", line)
    check_capacity(config, mesh)
    plan = BatchPlan.of(config.train, mesh.layout.data)
    # Before the model: wrong data are told sooner, and loader processes are forked while this one is small.
    rows = config.dataset.sft
    sources = Sources(config, tokenizer, mesh, plan) if rows is None else TuningSources(config, rows, tokenizer, mesh, plan)
    parts = assemble(config, mesh, start)
    if mesh.rank == 0:
        accept_config(Path(config.run.folder))
    loop = build_loop(parts, sources.feeds(parts.state), plan, process_start)
    if start is not None and not start.weights_only and start.folder.parent == Path(config.checkpoint.save or ""):
        loop.last_saved = start.iteration
    if loop.is_complete and not config.train.skip_train:
        log.info("all %d iterations are done already: nothing is left to train", config.train.train_iters)
    loop.run()
    if loop.is_complete:
        log.info("done: iteration %d, %s samples", parts.state.iteration, f"{parts.state.consumed_train_samples:,d}")


def build_loop(parts: Parts, feeds: Feeds, plan: BatchPlan, process_start: float) -> Loop:
    """Return the loop over assembled parts, with the callbacks that the configuration asks for."""
    config, mesh = parts.config, parts.mesh
    train = config.train
    trace = Trace(config.logger.timing_log_level)
    if mesh.device.type == "cuda":
        trace.wait = torch.cuda.synchronize
    if config.logger.barrier_before_timers and mesh.world.size > 1:
        trace.meet = dist.barrier
    stages = build_stages(parts, trace, trace.wait)
    sinks = open_sinks(parts) if mesh.rank == 0 else []
    timers = TimerReport(mesh.world, config.logger.timing_log_option, level=config.logger.timing_log_level)
    logging_ = Logging(config.logger, mesh, is_tuning=config.dataset.sft is not None, sinks=sinks, timers=timers)
    evaluation = Evaluation(
        train,
        stages=stages,
        mesh=mesh,
        logging=logging_,
        validation=feeds.validation,
        test=feeds.test,
    )
    callbacks: list[Callback] = []
    if Profiler.is_wanted(config.profiling, mesh.rank):
        callbacks.append(Profiling(_profiler(parts)))
    if config.profiling.memory_iteration >= 0:
        callbacks.append(MemoryProfile(config.profiling.memory_iteration, Path(config.run.folder), mesh))
    if config.model.pipeline.dump_times and mesh.pp.size > 1 and mesh.coordinates.dp == 0:
        callbacks.append(PipelineTimes(config, stages.pipeline, mesh))
    if config.ddp.check_weight_hash_interval is not None and parts.trainer is not None:
        interval = config.ddp.check_weight_hash_interval
        callbacks.append(ReplicaCheck(interval, parts.chunks, parts.trainer.buffers, mesh))
    if train.manual_gc:
        callbacks.append(GarbageCollection(train))
    callbacks += [evaluation, logging_, Stopping(train, mesh, process_start=process_start)]

    def save() -> None:
        with logging_.paused(), trace.span("save-checkpoint"):
            parts.save()

    def save_non_persistent() -> None:
        with logging_.paused(), trace.span("save-checkpoint-non-persistent"):
            parts.save_non_persistent()

    if not train.skip_train:
        callbacks.append(Saving(config.checkpoint, save_non_persistent))
    cost = training_cost(config.model, config.peft)

    return Loop(
        state=parts.state,
        step=None if parts.trainer is None else build_step(parts, parts.trainer, stages, trace),
        batches=feeds.train,
        plan=plan,
        train_iters=0 if train.skip_train else train.train_iters,
        skipped=frozenset(train.iterations_to_skip),
        flops_of=lambda sums: cost.flops(tokens=sums.tokens, squares=sums.squares),
        save=save,
        callbacks=callbacks,
        trace=trace,
    )


def build_stages(parts: Parts, trace: Spans, wait: Callable[[], object]) -> Stages:
    """Return the pipeline of this rank's chunks; `wait` returns when the device has done what it was given."""
    config, mesh = parts.config, parts.mesh
    stages = Stages(parts.chunks, build_pipeline(config, mesh, parts.chunks, wait), mesh.cp, trace)
    if config.model.pipeline.warmup and mesh.pp.size > 1 and parts.trainer is not None:
        warm_up(stages, parts.trainer.buffers, config, mesh, parts.streams)
    return stages


def build_step(parts: Parts, trainer: Trainer, stages: Stages, trace: Spans) -> TrainStep:
    """Return what turns a batch into an update."""
    train = parts.config.train
    return TrainStep(
        stages=stages,
        buffers=trainer.buffers,
        optimizer=trainer.optimizer,
        mesh=parts.mesh,
        trace=trace,
        per_token=train.calculate_per_token_loss,
        check_finite=train.check_for_nan_in_loss_and_grad,
        spikes=SpikeWatch() if train.check_for_spiky_loss else None,
        gradients=GradientWatch(
            trainer.buffers,
            parts.mesh,
            check_finite=train.check_for_nan_in_loss_and_grad,
            spikes=SpikeWatch() if train.check_for_large_grads else None,
        ),
        streams=parts.streams,
        routers=Routers(parts.chunks, parts.mesh, parts.config.model.moe, per_token=train.calculate_per_token_loss),
        predictions=Predictions(parts.config.model.mtp, parts.mesh, per_token=train.calculate_per_token_loss),
        empties=train.empty_unused_memory_level,
        validation=_validation(parts, trainer),
    )


def _validation(parts: Parts, trainer: Trainer) -> Validation | None:
    config = parts.config.optimizer
    if not config.post_validation or parts.mesh.pp.size == 1:
        return None
    return Validation(trainer.optimizer, parts.mesh, exact=config.exact_rollback)


def _ranks(mesh: Mesh) -> str:
    return f"one rank on {mesh.device}" if mesh.world.size == 1 else f"{mesh.world.size} ranks, this one on {mesh.device}"


def _profiler(parts: Parts) -> Profiler:
    logger, run = parts.config.logger, parts.config.run
    folder = Path(logger.tensorboard_dir or Path(run.folder) / "profile")
    return Profiler(parts.config.profiling, folder=folder, exp_name=run.exp_name, rank=parts.mesh.rank)
