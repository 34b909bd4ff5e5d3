"""What a recipe returns: mutable dataclasses under Megatron-Bridge's names, with its defaults.

- `config_container.py`: `ConfigContainer`, all of it
- `model.py`: the model and its layout over ranks
- `training.py`: length of the run, optimizer, schedule, seeds
- `distributed.py`: gradients of replicas, how ranks meet, what overlaps
- `data.py`: data and tokenizer
- `output.py`: checkpoints, logs, profiles
- `precision.py`: dtypes
- `peft.py`: adapters
- `resilience.py`: runs that go on
"""

from primus.backends.megatron_bridge.container.config_container import ConfigContainer
from primus.backends.megatron_bridge.container.data import (
    FinetuningDatasetConfig,
    GPTDatasetConfig,
    HFDatasetConfig,
    PackedSequenceSpecs,
    TokenizerConfig,
)
from primus.backends.megatron_bridge.container.distributed import (
    CommOverlapConfig,
    DistributedDataParallelConfig,
    DistributedInitConfig,
)
from primus.backends.megatron_bridge.container.model import ModelProvider
from primus.backends.megatron_bridge.container.output import CheckpointConfig, LoggerConfig, ProfilingConfig
from primus.backends.megatron_bridge.container.peft import PEFT, CanonicalLoRA, DoRA, LoRA
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

__all__ = [
    "PEFT",
    "CanonicalLoRA",
    "CheckpointConfig",
    "CommOverlapConfig",
    "ConfigContainer",
    "DistributedDataParallelConfig",
    "DistributedInitConfig",
    "DoRA",
    "FaultToleranceConfig",
    "FinetuningDatasetConfig",
    "GPTDatasetConfig",
    "HFDatasetConfig",
    "InProcessRestartConfig",
    "LoRA",
    "LoggerConfig",
    "MixedPrecisionConfig",
    "ModelProvider",
    "NVRxStragglerDetectionConfig",
    "OptimizerConfig",
    "PackedSequenceSpecs",
    "ProfilingConfig",
    "RNGConfig",
    "RerunStateMachineConfig",
    "SchedulerConfig",
    "StragglerDetectionConfig",
    "TensorInspectConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "ValidationConfig",
]
