"""The training loop: what a run does at all, which iterations it leaves out, which it profiles."""

from primus.backends.megatron.params import Params, Problems, Rule

__all__ = ["RULES"]


def module_is_trainable(p: Params) -> Problems:
    """Only modules that say so are trained."""
    if not p["trainable"]:
        yield f"{p.where('trainable')}: this module is not meant to be trained; set trainable: true."


def run_does_something(p: Params) -> Problems:
    """A run that does not train evaluates."""
    if p["skip_train"] and p["eval_iters"] == 0 and not p["full_validation"]:
        yield f"{p.where('skip_train')} leaves only evaluation, but {p.where('eval_iters')}: set eval_iters or full_validation."


def skipped_iterations_exist(p: Params) -> Problems:
    """Iterations are numbered from 0."""
    if any(iteration < 0 for iteration in p["iterations_to_skip"] or ()):
        yield f"{p.where('iterations_to_skip')} must hold iterations numbered from 0."


def profile_window_is_open(p: Params) -> Problems:
    """A profile covers at least one iteration."""
    if p["profile"] and p["profile_step_start"] >= p["profile_step_end"]:
        yield f"{p.where('profile_step_end')} must be above {p.where('profile_step_start')}: the window is [start, end)."


def one_record_at_a_time(p: Params) -> Problems:
    """Profiles and records of allocations come from one profiler."""
    traces, number = p["profile"] and p["use_pytorch_profiler"], p["profile_memory_iter"]
    if traces and p["profile_step_start"] <= number < p["profile_step_end"] and number > 0:
        yield (
            f"{p.where('profile_memory_iter')} lies in the profiled window from {p.where('profile_step_start')} to "
            f"{p.where('profile_step_end')}: choose an iteration outside."
        )


RULES: tuple[Rule, ...] = (
    module_is_trainable,
    run_does_something,
    skipped_iterations_exist,
    profile_window_is_open,
    one_record_at_a_time,
)
