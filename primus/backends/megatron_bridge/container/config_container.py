"""`ConfigContainer`: a whole run as a recipe states it, under Megatron-Bridge's names.

Mutable on purpose: a recipe fills it, the user's values are merged into it, and it is then translated to the flat keys whose
machinery checks it. What trains is the engine's container of the same name, which is frozen.
"""

from dataclasses import dataclass, field

from primus.backends.megatron_bridge.container.data import (
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    HFDatasetConfig,
    TokenizerConfig,
)
from primus.backends.megatron_bridge.container.distributed import (
    CommOverlapConfig,
    DistributedDataParallelConfig,
    DistributedInitConfig,
)
from primus.backends.megatron_bridge.container.model import ModelProvider
from primus.backends.megatron_bridge.container.output import CheckpointConfig, LoggerConfig, ProfilingConfig
from primus.backends.megatron_bridge.container.peft import PEFT
from primus.backends.megatron_bridge.container.precision import MixedPrecisionConfig
from primus.backends.megatron_bridge.container.resilience import (
    FaultToleranceConfig,
    InProcessRestartConfig,
    NVRxStragglerDetectionConfig,
    RerunStateMachineConfig,
    StragglerDetectionConfig,
    TensorInspectConfig,
)
from primus.backends.megatron_bridge.container.training import (
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TrainingConfig,
    ValidationConfig,
)

__all__ = ["ConfigContainer"]


@dataclass(kw_only=True)
class ConfigContainer:
    """A run."""

    train: TrainingConfig
    model: ModelProvider
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    dataset: GPTDatasetConfig | FinetuningDatasetConfig | HFDatasetConfig
    logger: LoggerConfig
    tokenizer: TokenizerConfig
    checkpoint: CheckpointConfig
    rng: RNGConfig = field(default_factory=RNGConfig)
    rerun_state_machine: RerunStateMachineConfig = field(default_factory=RerunStateMachineConfig)
    ddp: DistributedDataParallelConfig = field(default_factory=DistributedDataParallelConfig)
    dist: DistributedInitConfig = field(default_factory=DistributedInitConfig)
    validation: ValidationConfig | None = None
    ft: FaultToleranceConfig | None = None
    straggler: StragglerDetectionConfig | None = None
    nvrx_straggler: NVRxStragglerDetectionConfig | None = None
    profiling: ProfilingConfig | None = None
    peft: PEFT | None = None
    comm_overlap: CommOverlapConfig | None = None
    mixed_precision: MixedPrecisionConfig | str | None = None
    tensor_inspect: TensorInspectConfig | None = None
    inprocess_restart: InProcessRestartConfig | None = None
