"""The pipeline's schedule: which one, over how many model chunks a rank, and what it asks of the number of microbatches."""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args import zero_bubble
from primus.backends.megatron.patches.args.batch import batch_plan
from primus.backends.megatron.patches.args.stages import ENDS, LAYOUT, MANUAL, STANDALONE, layout_stages, num_slots, slots_text
from primus.backends.megatron.patches.args.stages import layers_per_stage as stage_layers
from primus.engine.config.pipeline import V_SHAPED, WHOLE_BACKWARDS

__all__ = [
    "RULES",
    "algorithm",
    "communication_method",
    "delays_weight_gradients",
    "interleave_group_size",
    "layers_per_stage",
    "num_chunks",
    "per_rank",
    "splits_backward",
]

_CHUNKS = ("num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size")
_SIZE, _GROUP = "num_layers_per_virtual_pipeline_stage", "microbatch_group_size_per_vp_stage"
_PATCHES = ("patch_primus_pipeline", "patch_zero_bubble")
_COSTS = ("pp_max_mem", "pp_cost_f", "pp_cost_b", "pp_cost_w")


def algorithm(p: Params) -> str:
    """Return the schedule; `pp_algorithm` counts under `patch_primus_pipeline` only."""
    if p["pipeline_model_parallel_size"] == 1:
        return "1f1b"
    if p["patch_primus_pipeline"]:
        return str(p["pp_algorithm"])
    if p["patch_zero_bubble"]:
        return zero_bubble.schedule(p, num_chunks(p))
    return "1f1b-interleaved" if num_chunks(p) > 1 else "1f1b"


def num_chunks(p: Params) -> int:
    """Return the model chunks of a rank."""
    ranks = p["pipeline_model_parallel_size"]
    if ranks == 1:
        return 1
    chosen = _chosen_chunks(p)
    if chosen is not None:
        return chosen
    is_folded = p["patch_primus_pipeline"] and p["pp_algorithm"] in V_SHAPED
    return 2 if is_folded or zero_bubble.folded(p) else 1


def layers_per_stage(p: Params) -> tuple[int, ...] | None:
    """Return the decoder layers of each stage; None without pipelining."""
    return stage_layers(p, num_chunks(p)) if p["pipeline_model_parallel_size"] > 1 else None


def interleave_group_size(p: Params) -> int | None:
    """Return the microbatches of a group, one a rank at most; None for schedules without such groups."""
    ranks = p["pipeline_model_parallel_size"]
    return min(p["interleave_group_size"] or ranks, ranks) if algorithm(p) == "group-interleaved" else None


def communication_method(p: Params) -> str:
    """Return how transfers are awaited; `communication_method` counts under `patch_primus_pipeline` only."""
    if p["patch_primus_pipeline"]:
        return str(p["communication_method"])
    return "async_p2p" if p["overlap_p2p_comm"] else "batch_p2p"


def delays_weight_gradients(p: Params) -> bool:
    """Tell whether whole backwards are taken apart."""
    return bool(p["delay_wgrad_compute"] and p["pipeline_model_parallel_size"] > 1 and not splits_backward(p))


def splits_backward(p: Params) -> bool:
    """Tell whether the schedule has weight gradients of its own."""
    return algorithm(p) not in WHOLE_BACKWARDS


def per_rank(p: Params, key: str) -> tuple[float, ...] | None:
    """Return a number for each pipeline rank; one number stands for all."""
    given = p[key]
    if given is None or p["pipeline_model_parallel_size"] == 1:
        return None
    return tuple(given) if isinstance(given, list) else (given,) * p["pipeline_model_parallel_size"]


def chunks_are_chosen_once(p: Params) -> Problems:
    """Their number follows from one key."""
    numbers = {p[key] for key in _CHUNKS if p[key] is not None}
    given = [key for key in (*_CHUNKS, _SIZE, LAYOUT) if p[key] is not None]
    is_said_twice = len(given) == 2 and len(numbers) == 1 and all(key in _CHUNKS for key in given)
    if len(given) > 1 and not is_said_twice:
        words = " and ".join(p.where(key) for key in given)
        yield f"{words} exclude each other: each gives the number of model chunks; keep one."


def keys_of_stages_need_stages(p: Params) -> Problems:
    """One stage holds every layer, has no chunks and nothing to order."""
    if p["pipeline_model_parallel_size"] > 1:
        return
    for key in (LAYOUT, MANUAL, *ENDS, STANDALONE, *_CHUNKS, _SIZE, *_PATCHES, _GROUP):
        if p[key] and not (key in _CHUNKS and p[key] == 1):
            yield f"{p.where(key)} needs a pipeline, but {p.where('pipeline_model_parallel_size')}."


def chunk_size_divides(p: Params) -> Problems:
    """Layers of a chunk times chunks are the layers of a rank."""
    ranks, size = p["pipeline_model_parallel_size"], p[_SIZE]
    if size is None or ranks == 1:
        return
    ends = [key for key in ENDS if p[key] is not None]
    if ends:
        yield f"{p.where(_SIZE)} and {p.where(ends[0])} exclude each other: use num_virtual_stages_per_pipeline_rank."
    elif num_slots(p) % ranks or num_slots(p) // ranks % size:
        yield (
            f"{p.where(_SIZE)}: {slots_text(p)} on {ranks} pipeline ranks are no whole number of chunks of {size}; choose a "
            "size that divides the layers of a rank."
        )


def layers_divide_over_chunks(p: Params) -> Problems:
    """Without padding, or with uneven ends, every chunk of a rank is as large as the others."""
    ranks, chunks = p["pipeline_model_parallel_size"], num_chunks(p)
    if ranks == 1 or chunks == 1:
        return
    if any(p[key] for key in ENDS):
        try:
            stage_layers(p, chunks)
        except Unreadable:
            words = " and ".join(p.where(key) for key in ENDS if p[key])
            yield f"{words}: the layers of each pipeline rank must be divisible by its {chunks} model chunks."
    elif not (p["allow_padding_num_layers"] or p[LAYOUT] or p[MANUAL]) and num_slots(p) % (ranks * chunks):
        yield (
            f"{slots_text(p)} are not divisible by {ranks} pipeline ranks x {chunks} model chunks: choose another depth, or "
            "set allow_padding_num_layers: true."
        )


def manual_split_is_as_long_as_the_stages(p: Params) -> Problems:
    """The list has a number for every stage."""
    ranks, given = p["pipeline_model_parallel_size"], p[MANUAL]
    if ranks > 1 and given and len(given) % ranks == 0 and len(given) != ranks * num_chunks(p):
        yield (
            f"{p.where(MANUAL)} has {len(given)} stages, but {ranks} pipeline ranks with {num_chunks(p)} model chunk(s) have "
            f"{ranks * num_chunks(p)}: set num_virtual_stages_per_pipeline_rank: {len(given) // ranks}, or change the list."
        )


def standalone_embedding_has_one_chunk(p: Params) -> Problems:
    """The stage of the embedding is a whole rank."""
    if p[STANDALONE] and num_chunks(p) > 1:
        yield (
            f"{p.where(STANDALONE)} needs one model chunk a rank, but there are {num_chunks(p)}; say it with "
            "pipeline_model_parallel_layout instead."
        )


def schedule_fits_the_chunks(p: Params) -> Problems:
    """Each schedule has its number of chunks."""
    if p["pipeline_model_parallel_size"] == 1 or not (p["patch_primus_pipeline"] or p["patch_zero_bubble"]):
        return
    name, chunks = algorithm(p), num_chunks(p)
    said = p.where("pp_algorithm") if p["patch_primus_pipeline"] else f"{p.where('patch_zero_bubble')}: the schedule {name}"
    hint = "set num_virtual_stages_per_pipeline_rank"
    if name == "1f1b-interleaved" and chunks < 2:
        yield f"{p.where('pp_algorithm')} needs several model chunks a rank: {hint}: 2 or more, or choose pp_algorithm: 1f1b."
    elif name in V_SHAPED and chunks != 2:
        yield f"{said} needs two model chunks a rank, but there are {chunks}: {hint}: 2."
    elif name not in (*V_SHAPED, "1f1b-interleaved", "group-interleaved") and chunks != 1:
        yield f"{said} needs one model chunk a rank, but there are {chunks}: {hint}: null."


def microbatches_fill_the_schedule(p: Params) -> Problems:
    """Interleaving moves microbatches in groups."""
    if p["pipeline_model_parallel_size"] > 1 and algorithm(p) == "1f1b-interleaved":
        plan = batch_plan(p)
        yield from _group_faults(p, sorted({size // plan.unit for size in plan.sizes()}))


def groups_need_interleaving(p: Params) -> Problems:
    """Groups exist in the interleaved schedule only."""
    if p[_GROUP] is not None and p["pipeline_model_parallel_size"] > 1 and algorithm(p) != "1f1b-interleaved":
        yield f"{p.where(_GROUP)} needs the interleaved schedule, but the schedule is {algorithm(p)}; set it to null."


def costs_are_those_of_the_heuristic(p: Params) -> Problems:
    """Costs and memory are one number, or one a pipeline rank, and only the heuristic reads them."""
    ranks = p["pipeline_model_parallel_size"]
    for key in (key for key in _COSTS if p[key] is not None):
        numbers = p[key] if isinstance(p[key], list) else [p[key]]
        least = 1 if key == "pp_max_mem" else 0
        if ranks == 1 or not p["patch_primus_pipeline"] or algorithm(p) != "zero-bubble-heuristic":
            yield f"{p.where(key)} is read by pp_algorithm zero-bubble-heuristic only; the schedule is {algorithm(p)}."
        elif isinstance(p[key], list) and len(numbers) != ranks:
            yield f"{p.where(key)} must be one number or {ranks}, one for each pipeline rank."
        if any(number < least or number <= 0 for number in numbers):
            bound = "at least 1: a rank that holds no microbatch cannot run" if least else "above 0"
            yield f"{p.where(key)} must be {bound}."


def output_gradient_can_wait(p: Params) -> Problems:
    """The last stage of a pipeline has time at the end of a step, unless its schedule uses it up."""
    key = "defer_embedding_wgrad_compute"
    if not p[key]:
        return
    if p["pipeline_model_parallel_size"] == 1:
        yield f"{p.where(key)} needs a pipeline, but {p.where('pipeline_model_parallel_size')}: set it to false."
    elif splits_backward(p):
        yield f"{p.where(key)}: the schedule {algorithm(p)} puts off all weight gradients already; set it to false."
    if not p["gradient_accumulation_fusion"]:
        yield f"{p.where(key)} needs gradient_accumulation_fusion: true (it is {p.where('gradient_accumulation_fusion')})."


RULES: tuple[Rule, ...] = (
    chunks_are_chosen_once,
    keys_of_stages_need_stages,
    chunk_size_divides,
    layers_divide_over_chunks,
    manual_split_is_as_long_as_the_stages,
    standalone_embedding_has_one_chunk,
    schedule_fits_the_chunks,
    microbatches_fill_the_schedule,
    groups_need_interleaving,
    costs_are_those_of_the_heuristic,
    output_gradient_can_wait,
)


def _chosen_chunks(p: Params) -> int | None:
    ranks = p["pipeline_model_parallel_size"]
    number = next((p[key] for key in _CHUNKS if p[key] is not None), None)
    if number is not None:
        return int(number)
    if p[_SIZE] is not None:
        if num_slots(p) % (ranks * p[_SIZE]):
            raise Unreadable(_SIZE)
        return int(num_slots(p) // (ranks * p[_SIZE]))
    if p[LAYOUT] is not None:
        count = len(layout_stages(p))
        if count % ranks:
            raise Unreadable(LAYOUT)
        return int(count // ranks)
    return None


def _group_faults(p: Params, counts: list[int]) -> Problems:
    ranks = p["pipeline_model_parallel_size"]
    group = p[_GROUP] or ranks
    said = p.where(_GROUP) if p[_GROUP] else f"groups of {ranks} (pipeline_model_parallel_size)"
    for count in counts:
        if not ranks <= group <= count:
            yield (
                f"interleaved pipeline: {said} must be between the {ranks} pipeline ranks and the {count} microbatches of a "
                "step; change it or global_batch_size."
            )
        elif 0 < count % group < ranks:
            yield (
                f"interleaved pipeline: {count} microbatches in {said} leave {count % group} for the last group, which needs "
                f"{ranks} at least: change global_batch_size, or {_GROUP}."
            )
