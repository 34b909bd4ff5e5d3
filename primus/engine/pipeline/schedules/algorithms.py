"""The schedules by name: `build_schedule` takes what a run knows and gives the table, or says what does not fit."""

from collections.abc import Sequence

from primus.engine.config.offload import OffloadConfig
from primus.engine.config.pipeline import ALGORITHMS, V_SHAPED, Algorithm, PipelineConfig
from primus.engine.pipeline.schedules.apart import with_weight_gradients_apart
from primus.engine.pipeline.schedules.controllable import v_half, v_min
from primus.engine.pipeline.schedules.group_interleaved import group_interleaved
from primus.engine.pipeline.schedules.heuristic import zb_heuristic
from primus.engine.pipeline.schedules.offload import with_offload
from primus.engine.pipeline.schedules.one_f_one_b import interleaved, one_f_one_b, sequence_split
from primus.engine.pipeline.schedules.one_f_one_b_v import one_f_one_b_v
from primus.engine.pipeline.schedules.simulate import Costs
from primus.engine.pipeline.schedules.table import Schedule
from primus.engine.pipeline.schedules.zero_bubble import zb_h1, zb_v
from primus.errors import InputError

__all__ = ["ALGORITHMS", "Algorithm", "build_schedule", "schedule_of"]

_COST = 1000.0
"""Of an operation, where the heuristic is told nothing: a thousand times a transfer."""
_FOLDED = {"zbv-formatted": zb_v, "v-half": v_half, "v-min": v_min, "1f1b-v": one_f_one_b_v}
_INTERLEAVED = {"1f1b-interleaved": interleaved, "group-interleaved": group_interleaved}


def schedule_of(config: PipelineConfig, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the schedule that a configuration names."""
    costs = Costs(
        forward=config.cost_forward or _COST,
        input_grad=config.cost_input_grad or _COST,
        weight_grad=config.cost_weight_grad or _COST,
        transfer=1.0,
    )
    is_in_groups = config.algorithm == "group-interleaved"
    schedule = build_schedule(
        config.algorithm,
        num_ranks,
        num_microbatches,
        num_chunks=config.num_chunks,
        group_size=config.interleave_group_size if is_in_groups else config.microbatch_group_size,
        num_slices=config.num_slices,
        costs=costs,
        max_memory=config.max_memory,
        offload=config.offload,
    )
    return with_weight_gradients_apart(schedule) if config.delay_weight_gradients else schedule


def build_schedule(
    algorithm: Algorithm,
    num_ranks: int,
    num_microbatches: int,
    *,
    num_chunks: int | None = None,
    group_size: int | None = None,
    num_slices: int = 1,
    costs: Costs | None = None,
    max_memory: float | Sequence[float] | None = None,
    offload: OffloadConfig | None = None,
) -> Schedule:
    """Return the schedule of a name; `num_chunks` None takes what it needs, two or one.

    `group_size` is the interleaved ones', `costs` and `max_memory` the heuristic's; InputError where they do not fit.
    """
    schedule = _built(algorithm, num_ranks, num_microbatches, num_chunks, group_size, num_slices, costs, max_memory)
    return with_offload(schedule, offload) if offload is not None and offload.is_on else schedule


def _built(
    algorithm: Algorithm,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None,
    group_size: int | None,
    num_slices: int,
    costs: Costs | None,
    max_memory: float | Sequence[float] | None,
) -> Schedule:
    if min(num_ranks, num_microbatches, num_slices) < 1:
        raise InputError(
            "a schedule needs a rank, a microbatch and a slice at least; "
            f"there are {num_ranks} ranks, {num_microbatches} microbatches, {num_slices} slices"
        )
    needs_two, is_interleaved = algorithm in V_SHAPED, algorithm in _INTERLEAVED
    chunks = num_chunks or (2 if needs_two or is_interleaved else 1)
    if is_interleaved and chunks < 2:
        raise InputError(f"{algorithm} needs two chunks a rank at least, not {chunks}")
    if not is_interleaved and chunks != (2 if needs_two else 1):
        raise InputError(f"{algorithm} has {'two chunks' if needs_two else 'one chunk'} a rank, not {chunks}")
    if num_slices > 1 and algorithm != "1f1b":
        raise InputError(f"num_seq_splits {num_slices} goes with 1f1b alone, not with {algorithm}")
    if needs_two:
        return _FOLDED[algorithm](num_ranks, num_microbatches)
    if is_interleaved:
        return _INTERLEAVED[algorithm](num_ranks, num_microbatches, chunks, group_size)
    if algorithm == "zero-bubble":
        return zb_h1(num_ranks, num_microbatches)
    if algorithm == "zero-bubble-heuristic":
        return zb_heuristic(num_ranks, num_microbatches, costs, max_memory)
    return (
        one_f_one_b(num_ranks, num_microbatches) if num_slices == 1 else sequence_split(num_ranks, num_microbatches, num_slices)
    )
