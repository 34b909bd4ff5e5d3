"""How long the run is, counted in iterations or in samples; never in both.

With `train_samples` the number of iterations follows from the batch plan. Presets of Primus count iterations: when the user
counts samples, the preset's iteration counts are laid aside and that is announced.
"""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule, Unreadable
from primus.backends.megatron.patches.args.batch import batch_plan

__all__ = ["DERIVATIONS", "RULES", "counts_samples", "total_samples", "train_iters"]

_ITERATION_KEYS = {"train_iters": None, "lr_decay_iters": None, "lr_wsd_decay_iters": None, "lr_warmup_iters": 0}
"""Keys that count iterations, with the value that means unset."""
_SAMPLE_KEYS = ("lr_decay_samples", "lr_wsd_decay_samples", "lr_warmup_samples")


def counts_samples(p: Params) -> bool:
    """Tell whether the run's clock counts samples."""
    return p["train_samples"] is not None


def train_iters(p: Params) -> int:
    """Return the optimizer iterations over all runs."""
    count: int = batch_plan(p).iterations_for(p["train_samples"]) if counts_samples(p) else p.required("train_iters")
    if count < 1:
        raise Unreadable("train_iters")
    return count


def total_samples(p: Params) -> int:
    """Return the samples over all runs, the batch ramp included."""
    samples: int = p["train_samples"] if counts_samples(p) else batch_plan(p).samples_of(train_iters(p))
    return samples


def samples_lay_preset_iterations_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's iteration counts give way to the user's `train_samples`."""
    if not counts_samples(p):
        return
    for key, unset in _ITERATION_KEYS.items():
        if p[key] and p.is_preset(key):
            notice = f"{p.where(key)} is laid aside: {p.where('train_samples')} makes samples the clock of this run."
            yield Rewrite(key=key, value=unset, reason="train_samples is set", notice=notice)


def clock_is_one(p: Params) -> Problems:
    """Iterations and samples are not mixed."""
    if counts_samples(p):
        for key, unset in _ITERATION_KEYS.items():
            if p[key]:
                write = "null" if unset is None else str(unset)
                yield (
                    f"{p.where(key)} counts iterations, but {p.where('train_samples')} counts samples: "
                    f"set {key}: {write}{_twin(key)}, or train_samples: null."
                )
        return
    for key in _SAMPLE_KEYS:
        if p[key]:
            yield (
                f"{p.where(key)} counts samples, but the run counts iterations ({p.where('train_iters')}): "
                f"use {key.replace('samples', 'iters')}, or set train_samples."
            )


def length_is_known(p: Params) -> Problems:
    """The run has an end."""
    if counts_samples(p):
        if batch_plan(p).iterations_for(p["train_samples"]) < 1:
            yield f"{p.where('train_samples')} is less than one batch, {p.where('global_batch_size')}: raise it."
    elif p["train_iters"] is None:
        yield f"neither train_iters ({p.source('train_iters')}) nor train_samples is set: set one of them."
    elif p["train_iters"] < 1:
        yield f"{p.where('train_iters')} must be at least 1; to evaluate without training set skip_train: true."


DERIVATIONS: tuple[Derivation, ...] = (samples_lay_preset_iterations_aside,)
RULES: tuple[Rule, ...] = (clock_is_one, length_is_known)


def _twin(key: str) -> str:
    """Name the key that counts the same thing in samples."""
    return "" if key == "train_iters" else f" and use {key.replace('iters', 'samples')}"
