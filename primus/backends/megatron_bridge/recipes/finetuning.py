"""The fine-tuning flavors of a model.

`finetunings` is the name to use: `*_finetune_config` has the values of Megatron-Bridge 0.3, `*_sft_config` and `*_peft_config`
those of its successors, which pack samples. The loss is a mean over the trained tokens of the whole batch, so that neither
packing nor padding nor a layout changes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primus.backends.megatron_bridge.container import ConfigContainer
from primus.backends.megatron_bridge.recipes.adapters import Lora, adapter, is_adapted
from primus.backends.megatron_bridge.recipes.arguments import Finetuning, filled
from primus.backends.megatron_bridge.recipes.flavor import Flavor
from primus.backends.megatron_bridge.recipes.model import Shape
from primus.backends.megatron_bridge.recipes.parts import base, laid_over
from primus.backends.megatron_bridge.recipes.rows import rows

__all__ = ["Degrees", "Family", "Fields", "degrees", "finetunings"]

Degrees = Mapping[str, Any]
Fields = Mapping[str, Mapping[str, Any]]
"""Sub-config to field to value."""

_FULL_LR, _ADAPTER_LR = 5.0e-6, 1.0e-4
_SEED = 5678
_ALWAYS: Mapping[str, Any] = {
    "train_iters": 1000,
    "global_batch_size": 128,
    "micro_batch_size": 1,
    "seq_length": 2048,
    "eval_interval": 100,
    "save_interval": 100,
    "min_lr": 0.0,
    "lr_warmup_iters": 50,
    "packed_sequence": False,
    "precision_config": "bf16_mixed",
}
"""Of all families, unless one says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """What the flavors of a family have in common."""

    arguments: Mapping[str, Any]
    """Values of arguments."""
    packed: Mapping[str, Any] = field(default_factory=dict)
    """Those of packed samples."""
    unpacked: Mapping[str, Any] = field(default_factory=dict)
    """Those of samples that are padded."""
    fields: Fields = field(default_factory=dict)
    """Values of the container."""
    fields_with_adapters: Fields = field(default_factory=dict)
    """Values of the container of a run that trains adapters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tuning:
    """One model's flavor."""

    shape: Shape
    family: Family
    full: Degrees
    adapters: Degrees
    lora: Lora
    fields: Fields

    def fill(self, given: Finetuning) -> Finetuning:
        """Return arguments with the values that depend on whether a run has adapters and packs samples."""
        has_adapters = is_adapted(given.peft)
        own = {"hf_path": self.shape.hf_path, "finetune_lr": _ADAPTER_LR if has_adapters else _FULL_LR}
        args = filled(given, {**own, **(self.adapters if has_adapters else self.full)})
        return filled(args, self.family.packed if given.packed_sequence else self.family.unpacked)

    def build(self, args: Finetuning) -> ConfigContainer:
        """Return the container of a run."""
        has_adapters, family = is_adapted(args.peft), self.family
        config = base(self.shape, args, lr=args.finetune_lr, beta2=0.98, seed=_SEED)
        config.model.calculate_per_token_loss = True
        config.dataset = rows(args, seed=_SEED)
        config.checkpoint.pretrained_checkpoint = args.pretrained_checkpoint
        config.checkpoint.hf_path = None if args.pretrained_checkpoint else args.hf_path
        config.logger.wandb_project = args.wandb_project
        config.logger.wandb_entity = args.wandb_entity
        config.logger.wandb_exp_name = args.wandb_exp_name
        config.peft = adapter(args, self.lora)
        for fields in (family.fields, family.fields_with_adapters if has_adapters else {}, self.fields):
            laid_over(config, fields)
        return config


def finetunings(
    shape: Shape,
    family: Family,
    newer: Family,
    *,
    full: Degrees | None = None,
    adapters: Degrees | None = None,
    lora: Lora | None = None,
    newer_lora: Lora | None = None,
    fields: Fields | None = None,
) -> tuple[Flavor[Finetuning], Flavor[Finetuning], Flavor[Finetuning]]:
    """Return a model's flavors `*_finetune_config`, `*_sft_config` and `*_peft_config`.

    `full` and `adapters` are arguments that differ with what is trained, `newer` and `newer_lora` what the later two take
    instead.
    """

    def flavor(values: Family, ranks: Lora | None, peft: str) -> Flavor[Finetuning]:
        tuning = _Tuning(
            shape=shape,
            family=values,
            full=full or degrees(),
            adapters=adapters or degrees(),
            lora=ranks or Lora(),
            fields=fields or {},
        )
        depends = {*values.packed, *values.unpacked, *tuning.full, *tuning.adapters}
        always = {name: value for name, value in _ALWAYS.items() if name not in depends}
        defaults = {**always, **values.arguments, "peft": peft}
        return Flavor(arguments=Finetuning, fill=tuning.fill, build=tuning.build, defaults=defaults)

    return flavor(family, lora, "lora"), flavor(newer, newer_lora or lora, "none"), flavor(newer, newer_lora or lora, "lora")


def degrees(
    tp: int = 1, pp: int = 1, ep: int | None = None, *, vp: int | None = None, sp: bool = False, cp: int = 1
) -> Degrees:
    """Return sizes of tensor, pipeline, expert and context parallelism as arguments."""
    sizes = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "sequence_parallel": sp,
    }
    if vp is not None:
        sizes["virtual_pipeline_model_parallel_size"] = vp
    if ep is not None:
        sizes["expert_model_parallel_size"] = ep
    return sizes
