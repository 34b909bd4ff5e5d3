"""Loss scaling: multiply the loss before backward so that small fp16 gradients do not vanish, divide them afterwards.

`build_loss_scaler` picks: a static scale for any dtype, the dynamic one for float16, none otherwise. The dynamic scale doubles
after a window of good steps and halves once `hysteresis` overflows have been spent; a good step does not give an overflow
back, only a grown scale does (the rule of Megatron-Core).
"""

from typing import Any

from primus.engine.config import MixedPrecisionConfig
from primus.errors import InputError

__all__ = ["ConstantScaler", "DynamicScaler", "LossScaler", "build_loss_scaler"]

_GROWTH = 2.0
_BACKOFF = 0.5


class ConstantScaler:
    """A scale that never changes; an overflow still skips its step."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def update(self, *, found_inf: bool) -> None:
        """Take note of a step: nothing changes."""

    def state_dict(self) -> dict[str, Any]:
        """Return the scale."""
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the configured scale: a static scale is the user's, not the checkpoint's."""


class DynamicScaler:
    """A scale that follows the overflows. Hysteresis is refilled only when the scale grows."""

    def __init__(self, *, initial: float, minimum: float, window: int, hysteresis: int) -> None:
        self.scale = initial
        self.minimum = minimum
        self.window = window
        self.hysteresis = hysteresis
        self.growth_tracker = 0
        self.hysteresis_tracker = hysteresis

    def update(self, *, found_inf: bool) -> None:
        """Take note of a step whose gradients were, or were not, all finite."""
        if found_inf:
            self.growth_tracker = 0
            self.hysteresis_tracker -= 1
            if self.hysteresis_tracker <= 0:
                self.scale = max(self.scale * _BACKOFF, self.minimum)
            return
        self.growth_tracker += 1
        if self.growth_tracker == self.window:
            self.growth_tracker = 0
            self.hysteresis_tracker = self.hysteresis
            self.scale *= _GROWTH

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next steps depend on."""
        return {
            "scale": self.scale,
            "growth_tracker": self.growth_tracker,
            "hysteresis_tracker": self.hysteresis_tracker,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; a static scaler's state gives only its scale."""
        if "scale" not in state:
            raise InputError(f"the checkpoint's loss scaler holds no 'scale', only {sorted(state)}; load it with no_load_optim")
        self.scale = float(state["scale"])
        self.growth_tracker = int(state.get("growth_tracker", 0))
        self.hysteresis_tracker = int(state.get("hysteresis_tracker", self.hysteresis))


LossScaler = ConstantScaler | DynamicScaler


def build_loss_scaler(config: MixedPrecisionConfig) -> LossScaler | None:
    """Return the scaler of a run, or None: without one gradients are not checked and no step is skipped."""
    if config.loss_scale:
        return ConstantScaler(config.loss_scale)
    if config.params_dtype == "float16":
        return DynamicScaler(
            initial=config.initial_loss_scale,
            minimum=config.min_loss_scale,
            window=config.loss_scale_window,
            hysteresis=config.hysteresis,
        )
    return None
