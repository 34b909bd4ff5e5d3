"""Data: documents as flat values; rows to fine-tune on as the engine's configuration."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from primus.backends.megatron_bridge.container import FinetuningDatasetConfig, GPTDatasetConfig, HFDatasetConfig
from primus.backends.megatron_bridge.translate.packs import absolute, with_packing
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value, nearest
from primus.core.keys import parse_type, show_value
from primus.core.keys.types import NotOfType
from primus.engine.config import SFTConfig
from primus.engine.config.sft import ChatConfig, PromptConfig

__all__ = ["document_values", "row_values", "rows"]

_PART = "dataset"
_OF_DOCUMENTS = {
    "split": "split",
    "reset_position_ids": "reset_position_ids",
    "reset_attention_mask": "reset_attention_mask",
    "eod_mask_loss": "eod_mask_loss",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "num_dataset_builder_threads": "num_dataset_builder_threads",
    "path_to_cache": "data_cache_path",
    "mmap_bin_files": "mmap_bin_files",
    "data_sharding": "data_sharding",
    "dataloader_type": "dataloader_type",
    "num_workers": "num_workers",
    "data_args_path": "data_args_path",
    "per_split_data_args_path": "per_split_data_args_path",
    "blend": "data_path",
}
_PER_SPLIT = ("train_data_path", "valid_data_path", "test_data_path")
_OF_ROWS = {
    "add_bos": "bool",
    "add_eos": "bool",
    "add_sep": "bool",
    "label_key": "str",
    "answer_only_loss": "bool",
    "truncation_field": "str",
    "truncation_method": "str",
    "pad_to_max_length": "bool",
    "prompt_template": "str",
    "chat": "bool",
    "use_hf_tokenizer_chat_template": "bool",
    "tool_schemas": "str|list[any]",
    "chat_template": "str",
    "index_mapping_dir": "str",
    "loss_mode": "str",
    "pad_seq_length_to_mult": "int",
}
"""Words of `dataset_kwargs` and their types; null leaves each at its default."""
_NOT_BUILT = ("dataset_dict", "split", "download_mode", "hf_kwargs")
_MULTIPLE = 16
"""Of the lengths of sequences."""
_LossOn = Literal["answers", "last_answer", "all"]
_LOSSES: dict[str, _LossOn] = {"completion": "answers", "assistant": "answers", "last_turn": "last_answer", "full": "all"}


def document_values(raw: Raw, data: GPTDatasetConfig) -> dict[str, Value]:
    """Return the flat values of pretraining data; mock data where no documents are named."""
    values = {key: raw.value(getattr(data, name), f"{_PART}.{name}") for name, key in _OF_DOCUMENTS.items()}
    if data.blend_per_split is not None and len(data.blend_per_split) == len(_PER_SPLIT):
        source = f"{_PART}.blend_per_split"
        values |= {key: raw.value(blend, source) for key, blend in zip(_PER_SPLIT, data.blend_per_split, strict=True)}
    sources = (data.blend, data.blend_per_split, data.data_args_path, data.per_split_data_args_path)
    values["mock_data"] = raw.value(not any(sources), f"{_PART}.blend")
    return values


def row_values(raw: Raw, data: FinetuningDatasetConfig) -> dict[str, Value]:
    """Return the flat values of fine-tuning data."""
    return {"num_workers": raw.value(data.num_workers, f"{_PART}.num_workers")}


def rows(raw: Raw, data: FinetuningDatasetConfig, problems: list[str]) -> SFTConfig | None:
    """Return where rows are and what is made of them; None if that cannot be said."""
    kwargs = _kwargs(raw, data, problems)
    source = _source(raw, data, problems)
    for name in _NOT_BUILT:
        if getattr(data, name, None) is not None:
            problems.append(f"{raw.where(f'{_PART}.{name}')} is not implemented yet.")
    if source is None:
        return None
    made = SFTConfig(
        train=source,
        subset=data.dataset_subset if isinstance(data, HFDatasetConfig) else None,
        do_validation=data.do_validation,
        do_test=data.do_test,
        val_proportion=data.val_proportion if isinstance(data, HFDatasetConfig) else None,
        prefer_own_validation=not (isinstance(data, HFDatasetConfig) and data.split_val_from_train),
        max_train_samples=data.max_train_samples,
        seed=data.seed,
        order=_choice(
            raw,
            "dataloader_type",
            "batch" if data.dataloader_type is None else data.dataloader_type,
            ("batch", "single", "cyclic"),
            problems,
        ),
        chat=kwargs.get("chat"),
        prompt_format=_prompts(kwargs),
        chat_format=ChatConfig(
            template=kwargs.get("chat_template") or raw.config.tokenizer.chat_template, tools=_tools(kwargs.get("tool_schemas"))
        ),
        loss_on=_loss_on(raw, kwargs, problems),
        truncation_method=_choice(
            raw,
            "dataset_kwargs.truncation_method",
            kwargs.get("truncation_method", "right"),
            ("right", "left", "error"),
            problems,
        ),
        pad_to_max_length=bool(kwargs.get("pad_to_max_length", False)),
        pad_multiple=_multiple(raw, kwargs, problems),
        cache=absolute(kwargs.get("index_mapping_dir")),
    )
    return with_packing(made, raw, data.packed_sequence_specs, problems)


def _source(raw: Raw, data: FinetuningDatasetConfig, problems: list[str]) -> str | None:
    name = data.dataset_name if isinstance(data, HFDatasetConfig) else None
    if data.dataset_root is not None and (name is None or raw.is_chosen(f"{_PART}.dataset_root")):
        folder = Path(data.dataset_root).expanduser().absolute()
        if not folder.exists():
            problems.append(f"{raw.where(f'{_PART}.dataset_root')} does not exist; name a folder with training.jsonl.")
        return str(folder)
    if name is None:
        problems.append(
            f"there are no rows to fine-tune on: set dataset.dataset_name or dataset.dataset_root ({raw.source(_PART)})."
        )
        return None
    path = Path(name).expanduser()
    return str(path.absolute()) if path.exists() else name


def _kwargs(raw: Raw, data: FinetuningDatasetConfig, problems: list[str]) -> Mapping[str, Any]:
    """Return the words of `dataset_kwargs` that are given, each of its type."""
    found: dict[str, Any] = {}
    path = f"{_PART}.dataset_kwargs"
    for name, value in (data.dataset_kwargs or {}).items():
        place = raw.source(f"{path}.{name}", path)
        if name not in _OF_ROWS:
            close = nearest(name, _OF_ROWS)
            hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(sorted(_OF_ROWS))}."
            problems.append(f"{path}.{name} ({place}) is not known. {hint}")
        elif value is not None:
            spec = parse_type(_OF_ROWS[name])
            try:
                found[name] = spec.convert(value)
            except NotOfType:
                problems.append(f"{path}.{name} {show_value(value)} ({place}) must be {spec}.")
    if found.get("use_hf_tokenizer_chat_template") is False:
        name = "use_hf_tokenizer_chat_template"
        problems.append(
            f"{path}.{name} false ({raw.source(f'{path}.{name}', path)}) is not implemented yet: conversations are written by "
            f"the tokenizer's chat template, or by {path}.chat_template; leave it out."
        )
    return found


def _loss_on(raw: Raw, kwargs: Mapping[str, Any], problems: list[str]) -> _LossOn:
    """Return which tokens are trained, which two words can say."""
    is_answer, mode = kwargs.get("answer_only_loss"), kwargs.get("loss_mode")
    if mode is None:
        return "all" if is_answer is False else "answers"
    chosen = _LOSSES[_choice(raw, "dataset_kwargs.loss_mode", mode, tuple(_LOSSES), problems)]
    if is_answer is not None and is_answer != (chosen != "all"):
        path = f"{_PART}.dataset_kwargs"
        problems.append(
            f"{path}.answer_only_loss {show_value(is_answer)} ({raw.source(f'{path}.answer_only_loss', path)}) contradicts "
            f"{path}.loss_mode {mode} ({raw.source(f'{path}.loss_mode', path)}): leave one out."
        )
    return chosen


def _multiple(raw: Raw, kwargs: Mapping[str, Any], problems: list[str]) -> int:
    path, multiple = f"{_PART}.dataset_kwargs", int(kwargs.get("pad_seq_length_to_mult", _MULTIPLE))
    if multiple < 1:
        name = "pad_seq_length_to_mult"
        problems.append(f"{path}.{name} {multiple} ({raw.source(f'{path}.{name}', path)}) must be at least 1.")
        return _MULTIPLE
    return multiple


def _prompts(kwargs: Mapping[str, Any]) -> PromptConfig:
    fields = kwargs.get("truncation_field")
    return PromptConfig(
        template=kwargs.get("prompt_template"),
        label_key=kwargs.get("label_key", "output"),
        truncation_fields=None if fields is None else tuple(name.strip() for name in fields.split(",")),
        add_bos=bool(kwargs.get("add_bos", False)),
        add_eos=bool(kwargs.get("add_eos", True)),
        add_sep=bool(kwargs.get("add_sep", False)),
    )


def _tools(given: Any) -> str | None:
    return given if given is None or isinstance(given, str) else json.dumps(given)


def _choice(raw: Raw, name: str, value: Any, choices: tuple[str, ...], problems: list[str]) -> Any:
    if value not in choices:
        source = raw.source(f"{_PART}.{name}", f"{_PART}.dataset_kwargs")
        problems.append(f"{_PART}.{name} {value} ({source}) must be one of {', '.join(choices)}.")
        return choices[0]
    return value
