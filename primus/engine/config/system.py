"""Precision, random seeds, the process groups, the rerun engine, and the run's own folder."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["CommunicatorConfig", "DistConfig", "GroupName", "MixedPrecisionConfig", "RNGConfig", "RunConfig"]

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
GroupName = Literal[
    "tp",
    "cp",
    "hcp",
    "dp",
    "dp_cp",
    "intra_dp_cp",
    "inter_dp_cp",
    "pp",
    "embd",
    "mp",
    "etp_ep",
    "expt_dp",
    "intra_expt_dp",
    "inter_expt_dp",
    "expt_mp",
]
"""The kinds of groups of a mesh; `hcp` are both levels of `a2a+p2p`."""


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
class CommunicatorConfig:
    """How NCCL communicates within the groups of one kind; None leaves the choice to NCCL."""

    group: GroupName
    """Kind of group."""
    min_ctas: int | None = None
    """Fewest thread blocks of a collective."""
    max_ctas: int | None = None
    """Most thread blocks of a collective."""
    cga_cluster_size: int | None = None
    """Thread blocks of a cluster, which run close together; 0: no clusters."""
    net_name: Literal["IB", "Socket"] | None = None
    """Network between nodes."""
    is_high_priority_stream: bool = False
    """Collectives go ahead of compute that waits for the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistConfig:
    """Process groups."""

    backend: str = "nccl"
    """Requested backend; a CPU run always uses gloo and says so."""
    timeout_minutes: float = 10.0
    """Limit of a collective."""
    pipeline_backend: Literal["nccl", "ucc"] | None = None
    """Library of the messages between stages; None: `backend`."""
    communicators: tuple[CommunicatorConfig, ...] = ()
    """Kinds of groups with settings of their own, each named once."""


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
