"""Activations in host memory between forward and backward: `offload` of the Primus runner, `cpu_offload` of the other."""

from primus.backends.megatron.params import Params, Problems, Rule, or_list
from primus.backends.megatron.patches.args.batch import batch_plan
from primus.backends.megatron.patches.args.pipeline import algorithm, interleave_group_size
from primus.backends.megatron.patches.args.pipeline import num_chunks as chunks_of_rank
from primus.engine.config.offload import OffloadConfig, estimated_copy_time
from primus.engine.config.pipeline import OFFLOADING_V
from primus.errors import InputError

__all__ = ["RULES", "named", "num_chunks", "tensors", "time"]

_SUPPORTED = "attn"
_UNSUPPORTED = ("basic_gemm", "row_parallel_gemm", "column_parallel_gemm", "grouped_linear")
_NUMBER = "offload_chunk_num"


def named(p: Params) -> tuple[str, ...]:
    """Return the names of `offload_ops`."""
    return tuple(word.strip() for word in p["offload_ops"].split(",") if word.strip())


def tensors(p: Params) -> str | None:
    """Return what of each forward may go to the host."""
    if p["cpu_offload"]:
        return "all"
    return _SUPPORTED if p["offload"] and named(p) else None


def num_chunks(p: Params) -> int:
    """Return how many first chunks of each rank this concerns; a V has one whose activations wait long."""
    if p["cpu_offload"]:
        return int(p[_NUMBER])
    return 1 if tensors(p) else 0


def time(p: Params) -> float | None:
    """Return the time of a copy as a share of a chunk's; None: the device says."""
    return float(p["offload_time"]) if p["cpu_offload"] and not p["auto_offload_time"] else None


def offload_needs_a_fold(p: Params) -> Problems:
    """Only there is a chunk whose forward comes first and whose backward comes last."""
    if p["offload"] and not (p["patch_primus_pipeline"] and algorithm(p) in OFFLOADING_V):
        yield (
            f"{p.where('offload')} needs a pipeline with patch_primus_pipeline: true and pp_algorithm {or_list(OFFLOADING_V)}; "
            f"the schedule is {algorithm(p)} ({p.where('patch_primus_pipeline')})."
        )


def offloaded_operations_are_known(p: Params) -> Problems:
    """Core attention is; upstream lists others that it does not move either."""
    for name in named(p):
        if name in _UNSUPPORTED:
            yield f"{p.where('offload_ops')}: the tensors of {name} cannot be moved; only {_SUPPORTED} can."
        elif name != _SUPPORTED:
            yield f"{p.where('offload_ops')}: there is no {name}; only {_SUPPORTED}, core attention, can be moved."


def host_memory_needs_groups(p: Params) -> Problems:
    """The schedule of small groups alone has places for such copies."""
    if p["cpu_offload"] and algorithm(p) != "group-interleaved":
        yield (
            f"{p.where('cpu_offload')} needs the group-interleaved schedule, but the schedule is {algorithm(p)}: set "
            "patch_zero_bubble: true, enable_zero_bubble: false and num_virtual_stages_per_pipeline_rank: 2 or more."
        )


def host_memory_is_reached_in_pairs(p: Params) -> Problems:
    """Two neighbours share a link."""
    ranks = p["pipeline_model_parallel_size"]
    if p["cpu_offload"] and ranks > 1 and ranks % 2:
        yield f"{p.where('cpu_offload')} works on pairs of ranks, but {p.where('pipeline_model_parallel_size')} is odd."


def some_chunks_are_offloaded(p: Params) -> Problems:
    """From one to all of them."""
    chunks = chunks_of_rank(p)
    if p["cpu_offload"] and not 1 <= p[_NUMBER] <= chunks:
        yield f"{p.where(_NUMBER)}: with {p.where('cpu_offload')} it must be from 1 to the {chunks} model chunk(s) of a rank."


def recomputation_leaves_something(p: Params) -> Problems:
    """What is computed again is not kept."""
    if p["cpu_offload"] and p["recompute_granularity"] == "full":
        yield f"{p.where('cpu_offload')} and {p.where('recompute_granularity')} exclude each other: keep one."


def copies_take_time(p: Params) -> Problems:
    """A schedule without a measure of them has no slots."""
    if p["cpu_offload"] and time(p) == 0.0:
        yield f"{p.where('offload_time')} must be above 0: copies take time; or set auto_offload_time: true."


def copies_are_in_time(p: Params) -> Problems:
    """Each activation is on the host before it has to come back; on an accelerator that nobody can ask here, by an estimate."""
    others = (host_memory_needs_groups, host_memory_is_reached_in_pairs, some_chunks_are_offloaded, copies_take_time)
    if not p["cpu_offload"] or any(fault for rule in others for fault in rule(p)):
        return
    # Here, because all other commands start sooner without it.
    from primus.engine.pipeline.schedules import build_schedule

    plan, ranks, chunks = batch_plan(p), p["pipeline_model_parallel_size"], chunks_of_rank(p)
    share = time(p) or estimated_copy_time(p["hidden_size"], p["seq_length"])
    offload = OffloadConfig(tensors="all", num_chunks=p[_NUMBER], time=share, overlaps=p["offload_overlap_sr"])
    for count in sorted({size // plan.unit for size in plan.sizes()}):
        group = interleave_group_size(p)
        try:
            build_schedule("group-interleaved", ranks, count, num_chunks=chunks, group_size=group, offload=offload)
        except InputError as error:
            yield f"{p.where('cpu_offload')} with {p.where(_NUMBER)}: {error}."
            return


RULES: tuple[Rule, ...] = (
    offload_needs_a_fold,
    offloaded_operations_are_known,
    host_memory_needs_groups,
    host_memory_is_reached_in_pairs,
    some_chunks_are_offloaded,
    recomputation_leaves_something,
    copies_take_time,
    copies_are_in_time,
)
