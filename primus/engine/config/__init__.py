"""The configuration of a run as frozen dataclasses, and their file form. Standard library and PyYAML only.

- `container.py`: `ConfigContainer`, the whole run
- `train.py`, `model.py`, `optim.py`, `data.py`, `checkpoint.py`, `observe.py`, `system.py`: its parts
- `attention.py`, `position.py`, `moe.py`, `ssm.py`, `delta.py`: parts of the model
- `blocks.py`: which parts stand in which layer
- `sft.py`, `peft.py`: rows to fine-tune on, adapters; `linears.py`: which linears have them
- `pipeline.py`: stages of the model and the order of their work
- `offload.py`: activations in host memory
- `recompute.py`: what of the model is computed twice
- `serialize.py`: container to YAML and back
- `batch.py`: the batch size over the run, derived from `train.py`
"""

from primus.engine.config.attention import AttentionConfig, MLAConfig
from primus.engine.config.checkpoint import CheckpointConfig, NonPersistentConfig
from primus.engine.config.container import ConfigContainer
from primus.engine.config.data import Blend, DatasetConfig, TokenizerConfig
from primus.engine.config.model import (
    FusionConfig,
    InitConfig,
    ModelConfig,
    ParallelConfig,
)
from primus.engine.config.observe import LoggerConfig, ProfilingConfig
from primus.engine.config.offload import OffloadConfig
from primus.engine.config.optim import DDPConfig, OptimizerConfig, SchedulerConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.recompute import RecomputeConfig
from primus.engine.config.sft import PackingConfig, SFTConfig
from primus.engine.config.system import CommunicatorConfig, DistConfig, GroupName, MixedPrecisionConfig, RNGConfig, RunConfig
from primus.engine.config.train import EvaluationConfig, TrainConfig

__all__ = [
    "AttentionConfig",
    "Blend",
    "CheckpointConfig",
    "CommunicatorConfig",
    "ConfigContainer",
    "DDPConfig",
    "DatasetConfig",
    "DistConfig",
    "EvaluationConfig",
    "FusionConfig",
    "GroupName",
    "InitConfig",
    "LoggerConfig",
    "MLAConfig",
    "MixedPrecisionConfig",
    "ModelConfig",
    "NonPersistentConfig",
    "OffloadConfig",
    "OptimizerConfig",
    "PEFTConfig",
    "PackingConfig",
    "ParallelConfig",
    "PipelineConfig",
    "PositionConfig",
    "ProfilingConfig",
    "RNGConfig",
    "RecomputeConfig",
    "RunConfig",
    "SFTConfig",
    "SchedulerConfig",
    "TokenizerConfig",
    "TrainConfig",
]
