"""`ConfigContainer`: everything the engine needs to know, typed and frozen, under Megatron-Bridge's sub-config names.

Workers receive it as a YAML file (`serialize.dump`, `serialize.load`) and see no preset, flat key or environment option.
"""

from dataclasses import dataclass, field

from primus.engine.config.checkpoint import CheckpointConfig
from primus.engine.config.data import DatasetConfig, TokenizerConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.observe import LoggerConfig, ProfilingConfig
from primus.engine.config.optim import DDPConfig, OptimizerConfig, SchedulerConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.system import DistConfig, MixedPrecisionConfig, RNGConfig, RunConfig
from primus.engine.config.train import TrainConfig

__all__ = ["ConfigContainer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigContainer:
    """One run, completely described; with a world size it gives a layout."""

    run: RunConfig
    train: TrainConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    scheduler: SchedulerConfig
    dataset: DatasetConfig
    tokenizer: TokenizerConfig
    ddp: DDPConfig = field(default_factory=DDPConfig)
    dist: DistConfig = field(default_factory=DistConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    profiling: ProfilingConfig = field(default_factory=ProfilingConfig)
    rng: RNGConfig = field(default_factory=RNGConfig)
    mixed_precision: MixedPrecisionConfig = field(default_factory=MixedPrecisionConfig)
    peft: PEFTConfig | None = None
    """None: all weights are trained."""
