"""What is saved where, and what a run starts from."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CheckpointConfig", "NonPersistentConfig"]

Strictness = Literal[
    "assume_ok_unexpected",
    "log_unexpected",
    "log_all",
    "raise_unexpected",
    "raise_all",
    "return_unexpected",
    "return_all",
    "ignore_all",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class NonPersistentConfig:
    """Checkpoints between the others, of which only the newest is kept."""

    save_interval: int | None = None
    """Iterations between them; None: none are made."""
    kind: Literal["global", "local"] | None = None
    """`global`: as all others, in a folder of their own; `local`: each rank's part on its node; None: none are looked for."""
    global_dir: str | None = None
    """Absolute folder; None: `non_persistent` in the folder of the others."""
    local_dir: str | None = None
    """Absolute folder on each node."""
    local_algo: Literal["fully_parallel", "atomic"] = "fully_parallel"
    """Replicated rectangles are in the part of one rank, or in those of all that need them."""
    replication_jump: int | None = None
    """Distance in ranks between those that keep one another's parts; None: nobody keeps another's."""
    replication_factor: int = 2
    """Ranks that keep a part, the one that wrote it among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """Saving and loading. Folders hold `latest_checkpointed_iteration.txt` and one `iter_NNNNNNN` a checkpoint."""

    save: str | None = None
    """Absolute folder; None never saves."""
    save_interval: int | None = None
    """Iterations between saves."""
    save_retain_interval: int | None = None
    """Keep only the newest checkpoint and those at multiples of this."""
    no_save_optim: bool = False
    """Leave optimizer and schedule out."""
    no_save_rng: bool = False
    """Leave random states out."""
    load: str | None = None
    """Absolute folder to start from."""
    no_load_optim: bool = False
    """Do not restore optimizer and schedule."""
    no_load_rng: bool = False
    """Do not restore random states."""
    load_main_params_from_ckpt: bool = False
    """With `no_load_optim`: fp32 main parameters come from the checkpoint."""
    finetune: bool = False
    """Weights only: iteration 0, fresh optimizer, schedule, counters and random states."""
    pretrained_checkpoint: str | None = None
    """Weights to start from when `load` holds no checkpoint."""
    hf_path: str | None = None
    """Absolute folder of a Hugging Face model: weights to start from when neither of the two gives any."""
    ckpt_step: int | None = None
    """Load this iteration instead of the newest."""
    exit_on_missing_checkpoint: bool = True
    """Refuse to start when `load` is set and holds nothing."""
    auto_continue_train: bool = False
    """Resume fully from the newest complete checkpoint under `save`, if there is one."""
    disable_last_saving: bool = False
    """No save at the last iteration."""
    ckpt_format: Literal["torch", "torch_dist"] = "torch_dist"
    """`torch_dist`: torch.distributed.checkpoint, loads into any layout; `torch`: one file a model-parallel rank."""
    auto_detect_ckpt_format: bool = False
    """Accept a checkpoint on disk whose format differs from `ckpt_format`."""
    fully_parallel_save: bool = True
    """Data-parallel ranks share the writing of replicated tensors."""
    strictness: Strictness = "assume_ok_unexpected"
    """What to do with tensors that are missing from the checkpoint or not asked for."""
    non_persistent: NonPersistentConfig = field(default_factory=NonPersistentConfig)
    """Checkpoints in between."""
