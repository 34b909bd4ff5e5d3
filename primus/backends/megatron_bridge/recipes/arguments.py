"""Keyword arguments of the flavors; every one of them is also a key of the page.

None means what the flavor says: some values depend on others, as the rate of a run depends on its adapters. The one exception
is `peft`, where None is `none`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

__all__ = ["Finetuning", "Pretraining", "Run", "filled"]

R = TypeVar("R", bound="Run")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What both kinds of training take."""

    dir: str | None = None
    """Folder above `name`; None: the run folder is the experiment's."""
    name: str | None = None
    """Folder of the run inside `dir`."""
    hf_path: str | None = None
    """Folder or name on the hub; None: the model's own."""
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None
    expert_tensor_parallel_size: int | None = None
    sequence_parallel: bool | None = None
    pipeline_dtype: str | None = None
    use_megatron_fsdp: bool | None = None
    moe_flex_dispatcher_backend: str | None = None
    train_iters: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_length: int | None = None
    eval_interval: int | None = None
    save_interval: int | None = None
    min_lr: float | None = None
    lr_warmup_iters: int | None = None
    lr_decay_iters: int | None = None
    precision_config: Any = None
    comm_overlap_config: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretraining(Run):
    """Arguments of `*_pretrain_config`."""

    data_paths: Sequence[str] | None = None
    data_args_path: str | None = None
    train_data_path: Sequence[str] | None = None
    valid_data_path: Sequence[str] | None = None
    test_data_path: Sequence[str] | None = None
    per_split_data_args_path: str | None = None
    mock: bool | None = None
    """Data that is made up; None: if no data is named."""
    use_null_tokenizer: bool | None = None
    lr: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finetuning(Run):
    """Arguments of `*_finetune_config`, `*_sft_config` and `*_peft_config`."""

    pretrained_checkpoint: str | None = None
    """Checkpoint to start from instead of the weights in `hf_path`."""
    peft: Any = None
    """`none`, `lora`, `dora`, `canonical_lora`, or a map with `type` and the adapters' fields."""
    peft_dim: int | None = None
    peft_alpha: float | None = None
    peft_dropout: float | None = None
    peft_target_modules: Sequence[str] | None = None
    packed_sequence: bool | None = None
    finetune_lr: float | None = None
    wandb_project: str | None = None
    wandb_entity: str | None = None
    wandb_exp_name: str | None = None


def filled(arguments: R, values: Mapping[str, Any]) -> R:
    """Return the arguments with values in the place of those that are None."""
    return replace(arguments, **{name: value for name, value in values.items() if getattr(arguments, name) is None})
