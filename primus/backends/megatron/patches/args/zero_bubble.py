"""The zero-bubble section: `patch_zero_bubble` lets its keys choose the schedule, and time it."""

from primus.backends.megatron.params import Params, Problems, Rule
from primus.core.keys import show_value

__all__ = ["RULES", "folded", "initial_memory", "max_pending", "num_slices", "schedule", "timed_steps"]

_SETUPS = {"half": "v-half", "min": "v-min", "zb": "zbv-formatted"}
_PENDING = "zero_bubble_max_pending_backward"
_SLICES = "num_seq_splits"
_VALIDATION = "enable_optimizer_post_validation"
_TOGETHER = {
    "use_megatron_fsdp": "sharded gradients are gone when an update would be made anew",
    "use_custom_fsdp": "sharded gradients are gone when an update would be made anew",
    "calculate_per_token_loss": "the number of tokens that divides the gradients is known on the last stage alone",
    "log_num_zeros_in_grad": "zeros are counted over all stages in every iteration",
    "log_params_norm": "the norm is summed over all stages in every iteration",
}
_START, _END = "zero_bubble_pipeline_timers_start_iter", "zero_bubble_pipeline_timers_end_iter"


def schedule(p: Params, num_chunks: int) -> str:
    """Return the schedule that the section chooses."""
    if p[_SLICES] > 1:
        return "1f1b"
    if p["enable_1f1b_v"]:
        return "1f1b-v"
    if p["zero_bubble_v_schedule"]:
        return _SETUPS[p["zero_bubble_v_schedule_mem_setup"]]
    if p["enable_zero_bubble"]:
        return "zero-bubble-heuristic"
    return "group-interleaved" if num_chunks > 1 else "1f1b"


def folded(p: Params) -> bool:
    """Tell whether the section folds the model in a V."""
    return bool(p["patch_zero_bubble"] and p[_SLICES] == 1 and (p["zero_bubble_v_schedule"] or p["enable_1f1b_v"]))


def num_slices(p: Params) -> int:
    """Return the slices of a sequence."""
    return int(p[_SLICES]) if p["patch_zero_bubble"] and p["pipeline_model_parallel_size"] > 1 else 1


def timed_steps(p: Params) -> tuple[int, int] | None:
    """Return the steps that the automatic scheduler times; None for schedules that are what they are."""
    return (max(1, p[_START]), p[_END]) if _is_automatic(p) else None


def max_pending(p: Params) -> int | None:
    """Return the limit in microbatches after timing; None for what memory allows."""
    return None if not _is_automatic(p) or p[_PENDING] == "auto" else int(p[_PENDING])


def initial_memory(p: Params) -> tuple[float, ...] | None:
    """Return what each rank may hold before anything is timed: one microbatch a rank (ZB1P)."""
    ranks = p["pipeline_model_parallel_size"]
    return (float(ranks),) * ranks if _is_automatic(p) else None


def one_section_chooses(p: Params) -> Problems:
    """Both patches choose the schedule."""
    if p["patch_zero_bubble"] and p["patch_primus_pipeline"]:
        yield f"{p.where('patch_zero_bubble')} and {p.where('patch_primus_pipeline')} exclude each other: keep one."


def whole_backwards_are_not_split(p: Params) -> Problems:
    """1F1B-V is a schedule of its own, without zero bubbles."""
    for key in ("enable_zero_bubble", "zero_bubble_v_schedule"):
        if p["patch_zero_bubble"] and p["enable_1f1b_v"] and p[key]:
            yield f"{p.where('enable_1f1b_v')} keeps backwards whole, but {p.where(key)}: set {key}: false."


def pending_backwards_are_a_number(p: Params) -> Problems:
    """A number of microbatches, or what memory allows."""
    given = p[_PENDING]
    if given != "auto" and not (isinstance(given, int) and given >= 1):
        yield f"{p.where(_PENDING)} must be auto, or a number of microbatches from 1."


def timing_has_an_end(p: Params) -> Problems:
    """From one step to another."""
    if p["patch_zero_bubble"] and p[_END] < max(1, p[_START]):
        yield f"{p.where(_END)} lies before {p.where(_START)}: the schedule is made anew after the last timed iteration."


def knocking_needs_messages_under_way(p: Params) -> Problems:
    """An element ahead of a message that is waited for at once wakes nothing."""
    key, value = ("communication_method", "async_p2p") if p["patch_primus_pipeline"] else ("overlap_p2p_comm", True)
    if p["pre_communication_optimization"] and p["pipeline_model_parallel_size"] > 1 and p[key] != value:
        yield f"{p.where('pre_communication_optimization')} needs {key}: {show_value(value)} (it is {p.where(key)})."


def slices_need_a_pipeline(p: Params) -> Problems:
    """They follow one another from stage to stage."""
    if p[_SLICES] > 1 and not p["patch_zero_bubble"]:
        yield f"{p.where(_SLICES)} needs patch_zero_bubble: true, and a pipeline (it is {p.where('patch_zero_bubble')})."


def slices_are_equal(p: Params) -> Problems:
    """Their tokens divide over what divides a sequence."""
    slices, length, ranks = p[_SLICES], p["seq_length"], p["tensor_model_parallel_size"]
    if slices == 1:
        return
    if length % slices:
        yield f"{p.where(_SLICES)} cuts {p.where('seq_length')} into unequal slices: choose a number that divides it."
    elif p["sequence_parallel"] and length // slices % ranks:
        yield (
            f"{p.where(_SLICES)} leaves slices of {length // slices} tokens, which sequence_parallel cannot divide over "
            f"{p.where('tensor_model_parallel_size')}: choose fewer slices."
        )


def slices_are_the_only_division(p: Params) -> Problems:
    """Neither folds nor ranks that share a sequence have an order of slices."""
    if p[_SLICES] == 1:
        return
    for key in ("zero_bubble_v_schedule", "enable_1f1b_v"):
        if p["patch_zero_bubble"] and p[key]:
            yield f"{p.where(_SLICES)} runs 1F1B over one model chunk a rank, but {p.where(key)} folds the model: keep one."
    if p["context_parallel_size"] > 1:
        yield f"{p.where(_SLICES)} and {p.where('context_parallel_size')} both divide the sequence: keep one."


def validation_needs_zero_bubbles(p: Params) -> Problems:
    """Elsewhere stages wait for one another anyway."""
    if not p[_VALIDATION]:
        return
    if not (p["patch_zero_bubble"] and p["pipeline_model_parallel_size"] > 1):
        yield f"{p.where(_VALIDATION)} needs a pipeline and patch_zero_bubble: true (it is {p.where('patch_zero_bubble')})."
    elif not p["enable_zero_bubble"]:
        yield f"{p.where(_VALIDATION)} needs enable_zero_bubble: true (it is {p.where('enable_zero_bubble')})."
    elif p[_SLICES] > 1:
        yield f"{p.where(_VALIDATION)} needs a schedule without bubbles, but {p.where(_SLICES)} runs 1F1B: keep one."


def validation_meets_nobody(p: Params) -> Problems:
    """What all stages have to do together in every step leaves nothing to validate later."""
    for key, why in _TOGETHER.items():
        if p[_VALIDATION] and p[key]:
            yield f"{p.where(_VALIDATION)} and {p.where(key)} exclude each other: {why}; keep one."


RULES: tuple[Rule, ...] = (
    validation_needs_zero_bubbles,
    validation_meets_nobody,
    one_section_chooses,
    whole_backwards_are_not_split,
    pending_backwards_are_a_number,
    timing_has_an_end,
    knocking_needs_messages_under_way,
    slices_need_a_pipeline,
    slices_are_equal,
    slices_are_the_only_division,
)


def _is_automatic(p: Params) -> bool:
    has_stages = p["pipeline_model_parallel_size"] > 1
    is_asked = p["patch_zero_bubble"] and p["enable_zero_bubble"] and p[_SLICES] == 1
    return bool(has_stages and is_asked and not folded(p))
