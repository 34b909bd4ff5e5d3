"""`rehearse`: one rank of a container's layout, built and run for a step on the meta device.

A step of M microbatches costs what one of m costs and M - m times the difference that a microbatch makes, so two short steps
tell what a long one exchanges. The first has as many microbatches as the rank needs to hold as much as it ever will.
"""

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace

import torch

from primus.engine.config import CheckpointConfig, ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.data.loader import Batch
from primus.engine.parallel.mesh import Group, Mesh, build_mesh
from primus.engine.parallel.sharding import global_parameters, global_shape, sharding_of
from primus.engine.pipeline.schedules import Schedule, peak_activations, schedule_of
from primus.engine.rehearsal import record
from primus.engine.rehearsal.live import Live, storage_bytes
from primus.engine.rehearsal.phases import Phases
from primus.engine.rehearsal.stand_in import StandIn, accelerator, silent_world
from primus.engine.rehearsal.traffic import Amount, Call, Traffic, sent_share
from primus.engine.train.assemble import Parts, assemble
from primus.engine.train.pretrain import build_stages, build_step
from primus.errors import InputError

__all__ = ["collective_records", "counted_step", "held_memory", "rehearse"]

_AXES = {
    "tp": "tensor",
    "cp": "context",
    "cp_exchange": "context, exchange",
    "cp_ring": "context, ring",
    "pp": "pipeline",
    "embd": "ends of the pipeline",
    "dp": "data",
    "dp_cp": "data x context",
    "intra_dp_cp": "one optimizer state",
    "inter_dp_cp": "optimizer instances",
    "etp_ep": "experts",
    "expt_dp": "data of experts",
    "intra_expt_dp": "one optimizer state of experts",
    "inter_expt_dp": "optimizer instances of experts",
    "expt_mp": "one copy of the experts",
    "mp": "one copy of the model",
    "world": "world",
}
"""Groups of the mesh, in the order in which they are told."""


def rehearse(config: ConfigContainer) -> record.Record:
    """Build and run the rank that RANK and WORLD_SIZE name; the vocabulary size must be known."""
    started = time.perf_counter()
    rank, world_size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    config = _without_surroundings(config)
    live = Live()
    with silent_world(rank, world_size), ExitStack() as stack:
        for mode in (accelerator(), StandIn(), live):
            stack.enter_context(mode)
        mesh = build_mesh(config.model.parallel, config.dist, torch.device("meta"))
        parts = assemble(config, mesh, None)
        schedules = _schedules(config, mesh)
        memory, steps = _run(parts, schedules, live)
        total = schedules.whole.num_microbatches
        return record.Record(
            rank=rank,
            world_size=world_size,
            groups=tuple(_groups(mesh)),
            parameters=tuple(_parameters(parts)),
            num_parameters=sum(parameter.numel() for _, parameter in global_parameters(parts.chunks)),
            memory=memory,
            algorithm=schedules.whole.algorithm,
            num_microbatches=total,
            num_alive=peak_activations(schedules.whole, mesh.pp.index),
            collectives=tuple(collective_records(steps, total, mesh)),
            seconds=time.perf_counter() - started,
            resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


def counted_step(parts: Parts, num_microbatches: int, phases: Phases) -> dict[Call, Amount]:
    """Run one step on made-up data and return what it exchanged."""
    assert parts.trainer is not None
    stages = build_stages(parts, phases, lambda: None)
    step = build_step(parts, parts.trainer, stages, phases)
    batch_size = num_microbatches * parts.config.train.micro_batch_size * parts.mesh.dp.size
    with Traffic(phases.current) as traffic:
        step(_batches(parts), num_microbatches=num_microbatches, batch_size=batch_size, iteration=1)
    return dict(traffic.amounts)


def _without_surroundings(config: ConfigContainer) -> ConfigContainer:
    """Leave out what writes, measures time, or fills weights that have no memory."""
    model = config.model
    pipeline = replace(model.pipeline, warmup=False, dump_times=False, timed_steps=None, debug_scheduler_table=False)
    # The copy time that is guessed for an accelerator that nobody has seen.
    pipeline = pipeline.with_copy_time(model.hidden_size, model.seq_length)
    return replace(
        config,
        model=replace(model, init=replace(model.init, perform=False), pipeline=pipeline),
        train=replace(config.train, skip_train=False),
        checkpoint=CheckpointConfig(),
    )


@dataclass(frozen=True, slots=True)
class _Schedules:
    """The schedule of a full step, and the numbers of microbatches of the steps that stand for it."""

    whole: Schedule
    least: int
    """The fewest that the schedule takes."""
    enough: int
    """So many that the rank holds as much at a time as in a full step."""
    other: int
    """What one microbatch adds shows beside it; the same if the full step itself is run."""


def _schedules(config: ConfigContainer, mesh: Mesh) -> _Schedules:
    batch = BatchPlan.of(config.train, mesh.layout.data)
    total = batch.global_batch_size // batch.unit
    pipeline, ranks = config.model.pipeline, mesh.pp.size
    whole = schedule_of(pipeline, ranks, total)
    most = peak_activations(whole, mesh.pp.index)
    possible: list[tuple[int, bool]] = []
    for number in range(1, min(total, 8 * ranks)):
        # Some take whole groups of microbatches, or more than a few.
        with suppress(InputError):
            holds_most = peak_activations(schedule_of(pipeline, ranks, number), mesh.pp.index) == most
            possible.append((number, holds_most))
        # With two microbatches there is one that is not the last.
        chosen = [pair for pair in possible if pair[0] > 1][-2:]
        if len(chosen) == 2 and any(is_enough for _, is_enough in chosen):
            (enough, _), (other, _) = sorted(chosen, key=lambda pair: not pair[1])
            return _Schedules(whole, possible[0][0], enough, other)
    return _Schedules(whole, possible[0][0] if possible else total, total, total)


def _batches(parts: Parts) -> Iterator[Batch]:
    model, train, device = parts.config.model, parts.config.train, parts.mesh.device
    B, S = train.micro_batch_size, model.seq_length
    has_mask = parts.config.dataset.create_attention_mask_in_dataloader
    while True:
        tokens, labels = torch.randint(model.vocab_size or 1, (2, B, S), device=device)
        blocked = torch.ones(S, S, dtype=torch.bool, device=device).triu_(1).expand(B, 1, S, S) if has_mask else None
        yield Batch(
            tokens=tokens,
            labels=labels,
            loss_mask=torch.ones(B, S, device=device),
            position_ids=torch.arange(S, device=device).expand(B, S),
            attention_mask=blocked,
        )


def _run(parts: Parts, schedules: _Schedules, live: Live) -> tuple[record.Memory, dict[int, dict[Call, Amount]]]:
    """Return the memory of a step, and what steps of so many microbatches exchange."""
    held = live.hold()
    # In the first step nobody knows yet when a gradient is complete, so nothing is reduced early.
    counted_step(parts, schedules.least, Phases(live))
    phases = Phases(live)
    steps = {schedules.enough: counted_step(parts, schedules.enough, phases)}
    if schedules.other != schedules.enough:
        steps[schedules.other] = counted_step(parts, schedules.other, Phases(live))
    return _memory(parts, held, Counter(phases.peaks)), steps


def held_memory(parts: Parts) -> dict[str, int]:
    """Return the bytes that stay from step to step, by fields of `record.Memory`."""
    assert parts.trainer is not None
    owned, updated = parts.trainer.buffers.ranges(), parts.trainer.optimizer.ranges
    weights = [parameter for chunk in parts.chunks for parameter in chunk.parameters()]
    return {
        "weights": storage_bytes([*weights, *(r.model for r in owned)]),
        "gradients": storage_bytes(r.grad for r in owned),
        "main_weights": storage_bytes(r.main for r in updated if r.has_main),
        "optimizer_state": storage_bytes(state for r in updated for state in r.states),
    }


def _memory(parts: Parts, held: int, peaks: Mapping[str, int]) -> record.Memory:
    kinds = held_memory(parts)
    return record.Memory(
        **kinds,
        other=held - sum(kinds.values()),
        activations=max(0, *(peaks[name] - held for name in ("forward", "backward", "between stages"))),
        update=max(0, *(peaks[name] - held for name in ("gradients", "update"))),
    )


def _groups(mesh: Mesh) -> Iterator[record.Group]:
    """Yield the groups of more than one rank that divide something, each once."""
    is_between = 0 < mesh.pp.index < mesh.pp.size - 1
    unused = (mesh.world.ranks, *([mesh.embd.ranks] if is_between else []))
    for ranks, axis in _axes(mesh).items():
        if len(ranks) > 1 and (ranks not in unused or axis not in (_AXES["world"], _AXES["embd"])):
            yield record.Group(axis=axis, ranks=ranks, index=ranks.index(mesh.rank))


def _axes(mesh: Mesh) -> dict[tuple[int, ...], str]:
    """Return the names of the groups by their members; groups of the same ranks share the first name."""
    names: dict[tuple[int, ...], str] = {}
    for field in dict.fromkeys((*_AXES, *(f.name for f in fields(mesh)))):
        group = getattr(mesh, field)
        if isinstance(group, Group):
            names.setdefault(group.ranks, _AXES.get(field, field))
    return names


def _parameters(parts: Parts) -> Iterator[record.ParameterKind]:
    kinds: Counter[tuple[str, tuple[int, ...], tuple[int, ...], str]] = Counter()
    for name, parameter in global_parameters(parts.chunks):
        sharding = sharding_of(parameter)
        whole = global_shape(parameter.shape, replace(sharding, valid_rows=None), parts.mesh)
        kind = re.sub(r"\.\d+\.", ".*.", name)
        kinds[kind, tuple(parameter.shape), whole, str(parameter.dtype).removeprefix("torch.")] += 1
    for (name, local, whole, dtype), count in kinds.items():
        yield record.ParameterKind(name=name, count=count, local=local, whole=whole, dtype=dtype)


def collective_records(steps: Mapping[int, Mapping[Call, Amount]], total: int, mesh: Mesh) -> Iterable[record.Collective]:
    """Yield what a step of `total` microbatches exchanges."""
    names = _axes(mesh)
    short, longer = min(steps), max(steps)
    first, second = steps[short], steps[longer]
    for call in dict.fromkeys((*first, *second)):
        one, other = first.get(call, Amount()), second.get(call, Amount())
        count, num_bytes = (
            a if longer == short else a + (b - a) * (total - short) // (longer - short)
            for a, b in ((one.count, other.count), (one.num_bytes, other.num_bytes))
        )
        yield record.Collective(
            axis=names[call.ranks],
            size=len(call.ranks),
            phase=call.phase,
            kind=call.kind,
            count=count,
            num_bytes=num_bytes,
            sent_bytes=round(num_bytes * sent_share(call.kind, len(call.ranks))),
        )
