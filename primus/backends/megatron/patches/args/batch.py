"""How the batch is cut: data parallelism, microbatches and batch ramp-up.

global_batch_size = micro_batch_size x data-parallel size x microbatches, for every size that the ramp runs through.
"""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable, or_list
from primus.core.keys import show_value
from primus.engine.config.batch import BatchPlan

__all__ = ["DEGREES", "RULES", "batch_plan", "data_parallel_size", "global_batch_size", "rampup"]

DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
"""Keys whose product is the ranks of one model replica."""


def data_parallel_size(p: Params) -> int:
    """Return the number of model replicas: what the world size leaves after tensor, pipeline and context parallelism."""
    width = _model_width(p)
    if p.world_size % width:
        raise Unreadable("world size")
    return p.world_size // width


def global_batch_size(p: Params) -> int:
    """Return the samples of one optimizer step at full size; null means one microbatch a data-parallel rank."""
    size: int | None = p["global_batch_size"]
    return p["micro_batch_size"] * data_parallel_size(p) if size is None else size


def rampup(p: Params) -> tuple[int, int, int] | None:
    """Return (start, increment, samples); None without ramp-up."""
    ramp = p["rampup_batch_size"]
    if ramp is None:
        return None
    if any(_ramp_faults(ramp, global_batch_size(p))):
        raise Unreadable("rampup_batch_size")
    start, increment, samples = ramp
    return start, increment, samples


def batch_plan(p: Params) -> BatchPlan:
    """Return the batch size as a function of consumed samples."""
    return BatchPlan(
        micro_batch_size=p["micro_batch_size"],
        global_batch_size=global_batch_size(p),
        data_parallel_size=data_parallel_size(p),
        rampup=rampup(p),
        round_down=p["decrease_batch_size_if_needed"],
    )


def world_is_divisible(p: Params) -> Problems:
    """The ranks form whole model replicas."""
    width = _model_width(p)
    if p.world_size % width == 0:
        return
    degrees = [p.where(key) for key in DEGREES if p[key] != 1]
    product = " x ".join(degrees) + (f" = {width}" if len(degrees) > 1 else "")
    processes = "1 process" if p.world_size == 1 else f"{p.world_size} processes"
    right = f"start {_nearest(p.world_size, width)} (--nproc-per-node), or change the degree"
    yield f"the run has {processes}, no multiple of {product}: {right}."


def batch_is_whole_microbatches(p: Params) -> Problems:
    """Every rank gets the same whole number of microbatches."""
    plan, size = batch_plan(p), global_batch_size(p)
    if plan.rampup is not None:
        return
    unit = f"{p.where('micro_batch_size')} x data-parallel size {plan.data_parallel_size} = {plan.unit}"
    if plan.round_down:
        if size < plan.unit:
            yield f"{p.where('global_batch_size')} is smaller than {unit} and cannot be rounded down to it: use {plan.unit}."
    elif size % plan.unit:
        nearest = _nearest(size, plan.unit)
        yield (
            f"{p.where('global_batch_size')} is not a multiple of {unit}: "
            f"use {nearest}, or set decrease_batch_size_if_needed: true."
        )


def ramp_leads_to_the_full_batch(p: Params) -> Problems:
    """A ramp is three integers that lead from the start exactly to the full batch."""
    if p["rampup_batch_size"] is not None:
        for fault in _ramp_faults(p["rampup_batch_size"], global_batch_size(p)):
            yield f"{p.where('rampup_batch_size')}: {fault} (full size: {p.where('global_batch_size')})."


def ramp_sizes_are_whole_microbatches(p: Params) -> Problems:
    """Every size of the ramp is cut like the full batch."""
    plan = batch_plan(p)
    if plan.rampup is None:
        return
    unit = f"{p.where('micro_batch_size')} x data-parallel size {plan.data_parallel_size} = {plan.unit}"
    wrong = [size for size in plan.sizes() if (size < plan.unit if plan.round_down else size % plan.unit)]
    if wrong:
        yield (
            f"{p.where('rampup_batch_size')} trains with batches of {show_value(plan.sizes()[:9])}, but {or_list(wrong[:3])} "
            f"is no multiple of {unit}: let start and increment be multiples of {plan.unit}."
        )


RULES: tuple[Rule, ...] = (
    world_is_divisible,
    batch_is_whole_microbatches,
    ramp_leads_to_the_full_batch,
    ramp_sizes_are_whole_microbatches,
)


def _model_width(p: Params) -> int:
    width = 1
    for key in DEGREES:
        width *= p[key]
    return width


def _nearest(size: int, unit: int) -> str:
    below = size // unit * unit
    return or_list([n for n in (below, below + unit) if n])


def _ramp_faults(ramp: list[int], full: int) -> Problems:
    if len(ramp) != 3:
        yield "write three numbers: start, increment and samples, for example 2 2 12"
        return
    start, increment, samples = ramp
    if start < 1 or increment < 1 or samples < 0:
        yield "start and increment must be at least 1 and the samples not negative"
    elif start >= full:
        yield f"the start {start} must be smaller than the full batch; without ramp-up write null"
    elif (full - start) % increment:
        yield f"steps of {increment} from {start} never reach {full} exactly; let the increment divide {full - start}"
