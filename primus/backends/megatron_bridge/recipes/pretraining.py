"""The pretraining flavor of a model; `pretraining` is the name to use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primus.backends.megatron_bridge.container import ConfigContainer, GPTDatasetConfig
from primus.backends.megatron_bridge.recipes.arguments import Pretraining, filled
from primus.backends.megatron_bridge.recipes.flavor import Flavor
from primus.backends.megatron_bridge.recipes.model import Shape
from primus.backends.megatron_bridge.recipes.parts import base, laid_over

__all__ = ["pretraining"]

_NULL_VOCABULARY = 32000
_ALWAYS: Mapping[str, Any] = {"lr": 3.0e-4, "min_lr": 3.0e-5, "use_null_tokenizer": False, "precision_config": "bf16_mixed"}
_DDP: Mapping[str, Any] = {
    "grad_reduce_in_fp32": True,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "average_in_collective": True,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Training:
    """One model's flavor."""

    shape: Shape
    fields: Mapping[str, Mapping[str, Any]]

    def fill(self, given: Pretraining) -> Pretraining:
        """Return arguments with the model's own."""
        return filled(given, {"hf_path": self.shape.hf_path})

    def build(self, args: Pretraining) -> ConfigContainer:
        """Return the container of a run."""
        config = base(self.shape, args, lr=args.lr, beta2=0.95, seed=1234)
        config.dataset = _data(args)
        config.logger.log_interval = 10
        if args.use_null_tokenizer or config.tokenizer.tokenizer_model is None:
            config.tokenizer.tokenizer_type = "NullTokenizer"
            config.tokenizer.tokenizer_model = None
            config.tokenizer.vocab_size = min(_NULL_VOCABULARY, (config.model.vocab_size or _NULL_VOCABULARY) - 1)
        for fields in ({"ddp": _DDP}, self.fields):
            laid_over(config, fields)
        return config


def pretraining(
    shape: Shape, values: Mapping[str, Any], sizes: Mapping[str, Any], *, fields: Mapping[str, Mapping[str, Any]] | None = None
) -> Flavor[Pretraining]:
    """Return a model's flavor `*_pretrain_config` with values of arguments, and of fields that are none."""
    training = _Training(shape=shape, fields=fields or {})
    defaults = {**_ALWAYS, **values, **sizes}
    return Flavor(arguments=Pretraining, fill=training.fill, build=training.build, defaults=defaults)


def _data(args: Pretraining) -> GPTDatasetConfig:
    """Return a blend of what is named, or data that is made up."""
    data, splits = (
        GPTDatasetConfig(seq_length=args.seq_length),
        (args.train_data_path, args.valid_data_path, args.test_data_path),
    )
    if args.mock:
        data.split = "1,1,1"
    elif args.data_paths or args.data_args_path:
        data.blend, data.data_args_path, data.split = _listed(args.data_paths), args.data_args_path, "9999,8,2"
    elif any(splits) or args.per_split_data_args_path:
        data.blend_per_split = [_listed(each) for each in splits] if any(splits) else None
        data.per_split_data_args_path = args.per_split_data_args_path
    else:
        data.split = "1,1,1"
    return data


def _listed(prefixes: Sequence[str] | None) -> list[str] | None:
    return None if prefixes is None else list(prefixes)
