"""Precision, random seeds, the process groups, the rerun engine, and the run's own folder."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DistConfig", "MixedPrecisionConfig", "RNGConfig", "RunConfig"]

Dtype = Literal["float64", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPrecisionConfig:
    """Dtypes of weights and gradients, and loss scaling."""

    params_dtype: Dtype = "bfloat16"
    """Weights and compute. bfloat16 and float16 keep fp32 main weights in the optimizer; float64 is for parity tests."""
    grad_dtype: Dtype = "float32"
    """Accumulation and reduction of gradients."""
    loss_scale: float | None = None
    """Static scale; None: dynamic under float16, none otherwise."""
    initial_loss_scale: float = 2.0**32
    """First dynamic scale."""
    min_loss_scale: float = 1.0
    """Floor of the dynamic scale."""
    loss_scale_window: int = 1000
    """Good steps in a row before the scale doubles."""
    hysteresis: int = 2
    """Overflows before the scale halves."""
    cross_entropy_in_fp16: bool = False
    """Cross entropy on fp16 logits (`fp16_lm_cross_entropy`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RNGConfig:
    """Random streams."""

    seed: int = 1234
    """Seed of everything drawn: weights, dropout, data order."""
    data_parallel_random_init: bool = False
    """Data-parallel ranks draw from streams of their own; their weights start alike all the same."""
    deterministic_mode: bool = False
    """Deterministic algorithms only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistConfig:
    """Process groups."""

    backend: str = "nccl"
    """Requested backend; a CPU run always uses gloo and says so."""
    timeout_minutes: float = 10.0
    """Limit of a collective."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Identity and folder of the run."""

    work_group: str
    """First part of the run folder."""
    user_name: str
    """Second part."""
    exp_name: str
    """Third part."""
    folder: str
    """Absolute run folder `{workspace}/{work_group}/{user_name}/{exp_name}`."""
    task: Literal["pretrain"] = "pretrain"
    """What the worker does with this container."""
