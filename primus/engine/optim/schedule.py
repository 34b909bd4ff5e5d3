r"""Learning rate and weight decay as functions of consumed samples; no torch.

`OptParamScheduler` is the name to use: it holds the clock, which counts the samples of successful steps, so iteration 1 runs
with the value at 0. `learning_rate` and `weight_decay` are the curves themselves, with M and m the peak and the floor, W the
warm-up, D the decay length and A WSD's anneal, all in samples:

    n <= W        start + (M - start) n/W           every style
    n > D         m                                 every style but `constant`, which stays at M
    between       m + c (M - m)                     c falls from 1 to 0 in the style's shape
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from primus.engine.config import OptimizerConfig, SchedulerConfig
from primus.errors import ConfigError, InputError

__all__ = ["OptParamScheduler", "RateName", "learning_rate", "weight_decay"]

RateName = Literal["default", "embedding", "output"]
"""Which learning rate a parameter follows: the embedding and the output layer may have their own."""

_ANNEALS: dict[str, Callable[[float], float]] = {
    "linear": lambda q: 1.0 - q,
    "cosine": lambda q: 0.5 * (1.0 + math.cos(math.pi * q)),
    "exponential": lambda q: 2.0 * 0.5**q - 1.0,
    "minus_sqrt": lambda q: 1.0 - math.sqrt(q),
}
"""Share of (peak - floor) that is left after the part q of a decay."""


def learning_rate(config: SchedulerConfig, n: float, peak: float, floor: float) -> float:
    """Return the rate after `n` samples for a group with this peak and floor."""
    warmup, decay = config.lr_warmup_steps, config.lr_decay_steps
    if warmup > 0 and n <= warmup:
        return config.lr_warmup_init + (peak - config.lr_warmup_init) * n / warmup
    if config.lr_decay_style == "constant":
        return peak
    if n > decay:
        return floor
    if config.lr_decay_style == "inverse-square-root":
        return max(floor, peak * math.sqrt(max(warmup, 1)) / math.sqrt(max(n, 1)))
    if config.lr_decay_style == "WSD":
        assert config.wsd_decay_steps is not None, "checked by OptParamScheduler"
        start = decay - config.wsd_decay_steps
        left = 1.0 if n <= start else _ANNEALS[config.wsd_decay_style]((n - start) / config.wsd_decay_steps)
    else:
        left = _ANNEALS[config.lr_decay_style]((n - warmup) / (decay - warmup))
    return floor + left * (peak - floor)


def weight_decay(config: SchedulerConfig, n: float) -> float:
    """Return the weight decay after `n` samples, for parameters that decay at all."""
    start, end, steps = config.start_weight_decay, config.end_weight_decay, config.weight_decay_incr_steps
    if config.weight_decay_incr_style == "constant" or n > steps:
        return end
    grown = n / steps if config.weight_decay_incr_style == "linear" else 0.5 * (math.cos(math.pi * (1.0 - n / steps)) + 1.0)
    return start + grown * (end - start)


class OptParamScheduler:
    """The clock of a run in samples, and the rates at its present position.

    `step` is called after a successful optimizer step only: a step that overflowed leaves the schedule where it was.
    """

    def __init__(self, config: SchedulerConfig, optimizer: OptimizerConfig) -> None:
        _check(config, optimizer)
        self.config = config
        self.optimizer = optimizer
        self.num_steps = 0
        """Samples of the successful steps so far."""

    def lr(self, name: RateName = "default") -> float:
        """Return the learning rate of the coming step."""
        o = self.optimizer
        if name == "default":
            return learning_rate(self.config, self.num_steps, o.lr, o.min_lr)
        peak, floor = o.lr, o.min_lr
        if o.decoupled_lr is not None:
            peak = o.decoupled_lr
            floor = o.min_lr if o.decoupled_min_lr is None else o.decoupled_min_lr
        rate = learning_rate(self.config, self.num_steps, peak, floor)
        return rate * o.head_lr_mult if name == "output" else rate

    def rates(self) -> dict[RateName, float]:
        """Return the learning rate of every name, as `Optimizer.step` takes them."""
        return {name: self.lr(name) for name in ("default", "embedding", "output")}

    @property
    def wd(self) -> float:
        """Weight decay of the coming step, for parameters that decay."""
        return weight_decay(self.config, self.num_steps)

    def step(self, samples: int) -> None:
        """Advance the clock by the samples of a successful iteration."""
        self.num_steps += samples

    def state_dict(self) -> dict[str, Any]:
        """Return the clock and the schedule under Megatron's names."""
        return {"num_steps": self.num_steps} | {row.name: row.value(self.config, self.optimizer) for row in _STORED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the clock from a checkpoint, and the schedule as the configuration says.

        `override_opt_param_scheduler` keeps the configured schedule, `use_checkpoint_opt_param_scheduler` takes the stored
        one; with neither the two must be equal. Entries that the checkpoint lacks keep their configured value. WSD's anneal
        and `lr_warmup_init` are not stored, so they always come from the configuration.
        """
        names = ("num_steps", "num_iters")
        clock = next((int(state[name]) for name in names if name in state), None)
        if clock is None:
            raise InputError(f"the checkpoint's schedule holds no 'num_steps', only {sorted(state)}; load with no_load_optim")
        stored = {row: state[name] for row in _STORED for name in (row.name, *row.aliases) if name in state}
        if self.config.use_checkpoint_opt_param_scheduler:
            self._adopt(stored)
        elif not self.config.override_opt_param_scheduler:
            self._check_equal(stored)
        self.num_steps = clock

    def _adopt(self, stored: Mapping["_Stored", Any]) -> None:
        self.config = replace(self.config, **{row.field: v for row, v in stored.items() if row.owner is SchedulerConfig})
        self.optimizer = replace(self.optimizer, **{row.field: v for row, v in stored.items() if row.owner is OptimizerConfig})
        _check(self.config, self.optimizer)

    def _check_equal(self, stored: Mapping["_Stored", Any]) -> None:
        configured = {row: row.value(self.config, self.optimizer) for row in stored}
        problems = [
            f"{row.key}: the checkpoint was written with {row.name} = {stored[row]!r}, the configuration gives {value!r}"
            for row, value in configured.items()
            if value != stored[row]
        ]
        if problems:
            way_out = (
                "the schedule differs from the checkpoint's: set override_opt_param_scheduler to train on with the "
                "configured one, or use_checkpoint_opt_param_scheduler to keep the stored one"
            )
            raise ConfigError([*problems, way_out])


@dataclass(frozen=True, slots=True)
class _Stored:
    """One entry of the saved schedule: its names, where it lives in the configuration, and the flat key a user changes."""

    name: str
    owner: type[SchedulerConfig] | type[OptimizerConfig]
    field: str
    key: str
    aliases: tuple[str, ...] = ()
    """Names in older Megatron checkpoints."""

    def value(self, config: SchedulerConfig, optimizer: OptimizerConfig) -> Any:
        return getattr(config if self.owner is SchedulerConfig else optimizer, self.field)


_STORED = (
    _Stored("max_lr", OptimizerConfig, "lr", "lr", ("start_lr",)),
    _Stored("min_lr", OptimizerConfig, "min_lr", "min_lr"),
    _Stored("decoupled_max_lr", OptimizerConfig, "decoupled_lr", "decoupled_lr"),
    _Stored("decoupled_min_lr", OptimizerConfig, "decoupled_min_lr", "decoupled_min_lr"),
    _Stored("lr_warmup_steps", SchedulerConfig, "lr_warmup_steps", "warm-up in samples", ("warmup_iter", "warmup_steps")),
    _Stored("lr_decay_style", SchedulerConfig, "lr_decay_style", "lr_decay_style", ("decay_style",)),
    _Stored("lr_decay_steps", SchedulerConfig, "lr_decay_steps", "decay length in samples", ("end_iter", "decay_steps")),
    _Stored("start_wd", SchedulerConfig, "start_weight_decay", "start_weight_decay"),
    _Stored("end_wd", SchedulerConfig, "end_weight_decay", "end_weight_decay"),
    _Stored("wd_incr_style", SchedulerConfig, "weight_decay_incr_style", "weight_decay_incr_style"),
    _Stored("wd_incr_steps", SchedulerConfig, "weight_decay_incr_steps", "length of the run in samples"),
)


def _check(config: SchedulerConfig, optimizer: OptimizerConfig) -> None:
    """Refuse a schedule that has no curve; the front door says the same of the flat keys before anything starts."""
    o, c = optimizer, config
    highest = [o.lr] if o.decoupled_lr is None else [o.lr, o.decoupled_lr]
    decoupled_floor = o.min_lr if o.decoupled_min_lr is None else o.decoupled_min_lr
    rules = (
        (o.min_lr < 0, f"min_lr is {o.min_lr}; a learning rate cannot be negative"),
        (o.min_lr > o.lr, f"min_lr {o.min_lr} is above lr {o.lr}; lower it, or raise lr"),
        (
            o.decoupled_lr is not None and not 0 <= decoupled_floor <= o.decoupled_lr,
            f"the floor {decoupled_floor} of the embedding and output layer is not between 0 and decoupled_lr "
            f"{o.decoupled_lr}; set decoupled_min_lr",
        ),
        (c.lr_warmup_init > min(highest), f"lr_warmup_init {c.lr_warmup_init} is above the peak {min(highest)}"),
        (c.lr_decay_steps <= 0, f"the learning rate decays over {c.lr_decay_steps} samples; it needs at least one"),
        (
            c.lr_warmup_steps >= c.lr_decay_steps,
            f"the warm-up ({c.lr_warmup_steps:g} samples) is not shorter than the decay it is part of "
            f"({c.lr_decay_steps} samples); lower lr_warmup_iters, or train longer",
        ),
        (
            c.lr_decay_style == "WSD" and not c.wsd_decay_steps,
            "lr_decay_style WSD needs lr_wsd_decay_iters or lr_wsd_decay_samples, the length of its anneal",
        ),
        (
            not 0 <= c.start_weight_decay <= c.end_weight_decay,
            f"weight decay goes from {c.start_weight_decay} to {c.end_weight_decay}; it cannot be negative or fall",
        ),
        (
            c.override_opt_param_scheduler and c.use_checkpoint_opt_param_scheduler,
            "override_opt_param_scheduler and use_checkpoint_opt_param_scheduler are both true; the schedule comes from one",
        ),
    )
    problems = [text for broken, text in rules if broken]
    if problems:
        raise ConfigError(problems)
