"""Learning rate and weight decay over the run, with every length in samples.

The curves count samples of successful iterations: D until the floor, W of warm-up, A of WSD's anneal, I of weight-decay growth.
"""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule
from primus.backends.megatron.patches.args.batch import batch_plan
from primus.backends.megatron.patches.args.duration import counts_samples, total_samples

__all__ = ["DERIVATIONS", "RULES", "anneal_samples", "decay_samples", "warmup_samples", "weight_decay_range"]


def decay_samples(p: Params) -> int:
    """Return D, the samples until the schedule reaches its floor, warm-up included."""
    if counts_samples(p):
        return int(p["lr_decay_samples"] or total_samples(p))
    return batch_plan(p).samples_of(p["lr_decay_iters"]) if p["lr_decay_iters"] else total_samples(p)


def warmup_samples(p: Params) -> float:
    """Return W, the samples of warm-up; a fraction is one of D and is not rounded."""
    if p["lr_warmup_fraction"] is not None:
        return float(p["lr_warmup_fraction"]) * decay_samples(p)
    if counts_samples(p):
        return float(p["lr_warmup_samples"])
    return float(batch_plan(p).samples_of(p["lr_warmup_iters"]))


def anneal_samples(p: Params) -> int | None:
    """Return A, the samples of WSD's anneal; None if unset."""
    if counts_samples(p):
        return p["lr_wsd_decay_samples"] or None
    return batch_plan(p).samples_of(p["lr_wsd_decay_iters"]) if p["lr_wsd_decay_iters"] else None


def weight_decay_range(p: Params) -> tuple[float, float]:
    """Return weight decay at the start and at the end of the run."""
    if p["weight_decay_incr_style"] == "constant":
        return float(p["weight_decay"]), float(p["weight_decay"])
    return float(p.required("start_weight_decay")), float(p.required("end_weight_decay"))


def fraction_lays_preset_warmup_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's warm-up iterations give way to the user's fraction."""
    if p["lr_warmup_fraction"] is not None and p["lr_warmup_iters"] and p.is_preset("lr_warmup_iters"):
        notice = f"{p.where('lr_warmup_iters')} is laid aside: {p.where('lr_warmup_fraction')} sets the warm-up."
        yield Rewrite(key="lr_warmup_iters", value=0, reason="lr_warmup_fraction is set", notice=notice)


def peak_is_set(p: Params) -> Problems:
    """Training has a learning rate."""
    if p["lr"] is None and not p["skip_train"]:
        yield f"lr is null ({p.source('lr')}): set the peak learning rate, for example lr: 3.0e-4."


def floor_lies_below_peak(p: Params) -> Problems:
    """A schedule falls from its peak to its floor."""
    lr, floor = p.required("lr"), p["min_lr"]
    if floor > lr:
        yield f"{p.where('min_lr')} is above {p.where('lr')}: set it to at most {lr:g}, for example min_lr: {lr / 10:g}."


def decoupled_floor_lies_below_peak(p: Params) -> Problems:
    """The embedding's own rate obeys the same order."""
    peak = p["decoupled_lr"]
    key = "min_lr" if p["decoupled_min_lr"] is None else "decoupled_min_lr"
    if peak is not None and p[key] > peak:
        yield f"{p.where(key)} is above {p.where('decoupled_lr')}: set decoupled_min_lr to at most {peak:g}."


def warmup_starts_below_peak(p: Params) -> Problems:
    """A warm-up rises."""
    if p["lr_warmup_init"] > p.required("lr"):
        yield f"{p.where('lr_warmup_init')} is above {p.where('lr')}: a warm-up rises; lower lr_warmup_init."


def warmup_is_given_once(p: Params) -> Problems:
    """Fraction and count exclude each other."""
    count = "lr_warmup_samples" if counts_samples(p) else "lr_warmup_iters"
    if p["lr_warmup_fraction"] is not None and p[count]:
        yield f"{p.where('lr_warmup_fraction')} and {p.where(count)} both set the warm-up: set {count}: 0 or drop the fraction."


def warmup_ends_before_decay(p: Params) -> Problems:
    """The rate must come down again: W < D."""
    fraction = p["lr_warmup_fraction"]
    if fraction is not None:
        if fraction >= 1:
            yield f"{p.where('lr_warmup_fraction')} must be below 1: it is a share of the decay length."
        return
    unit = "samples" if counts_samples(p) else "iters"
    count = f"lr_warmup_{unit}"
    if p[count] and warmup_samples(p) >= decay_samples(p):
        length = f"lr_decay_{unit}" if p[f"lr_decay_{unit}"] else f"train_{unit}"
        yield (
            f"{p.where(count)} is not shorter than {p.where(length)}, so the learning rate would never leave its warm-up: "
            f"set {count} to at most {p[length] - 1}, for example {count}: {p[length] // 10}."
        )


def anneal_is_set_for_wsd(p: Params) -> Problems:
    """WSD needs the length of its last part, and that part lies behind the warm-up."""
    if p["lr_decay_style"] != "WSD":
        return
    key = "lr_wsd_decay_samples" if counts_samples(p) else "lr_wsd_decay_iters"
    anneal = anneal_samples(p)
    if anneal is None:
        yield f"{p.where('lr_decay_style')} needs {key}, the length of its anneal: set it."
    elif anneal > decay_samples(p) - warmup_samples(p):
        yield f"{p.where(key)} is longer than what the warm-up leaves of the schedule: the rate would jump; shorten it."


def resume_has_one_schedule(p: Params) -> Problems:
    """On resume either the configuration or the checkpoint wins."""
    if p["override_opt_param_scheduler"] and p["use_checkpoint_opt_param_scheduler"]:
        yield (
            f"{p.where('use_checkpoint_opt_param_scheduler')} contradicts {p.where('override_opt_param_scheduler')}: "
            "to continue the checkpoint's schedule set override_opt_param_scheduler: false."
        )


def weight_decay_matches_style(p: Params) -> Problems:
    """A constant decay has one value, a growing one has two."""
    ends = ("start_weight_decay", "end_weight_decay")
    if p["weight_decay_incr_style"] == "constant":
        for key in ends:
            if p[key] is not None:
                yield (
                    f"{p.where(key)} has no place in {p.where('weight_decay_incr_style')}: "
                    "set weight_decay, or choose linear or cosine."
                )
        return
    missing = [key for key in ends if p[key] is None]
    for key in missing:
        yield f"{p.where('weight_decay_incr_style')} needs start_weight_decay and end_weight_decay: set {key}."
    if not missing and not 0 <= p["start_weight_decay"] <= p["end_weight_decay"]:
        yield f"{p.where('start_weight_decay')} and {p.where('end_weight_decay')} must satisfy 0 <= start <= end."


def head_rate_has_a_head(p: Params) -> Problems:
    """A tied output layer is the embedding's table and follows the embedding's rate."""
    if p["head_lr_mult"] != 1.0 and not p["untie_embeddings_and_output_weights"]:
        tied = p.where("untie_embeddings_and_output_weights")
        yield f"{p.where('head_lr_mult')} acts on the output layer, but {tied} makes it the embedding: set 1, or untie them."


DERIVATIONS: tuple[Derivation, ...] = (fraction_lays_preset_warmup_aside,)
RULES: tuple[Rule, ...] = (
    peak_is_set,
    floor_lies_below_peak,
    decoupled_floor_lies_below_peak,
    warmup_starts_below_peak,
    warmup_is_given_once,
    warmup_ends_before_decay,
    anneal_is_set_for_wsd,
    resume_has_one_schedule,
    weight_decay_matches_style,
    head_rate_has_a_head,
)
