"""Packed samples: `with_packing` puts into the engine's configuration what a container says of them."""

from dataclasses import replace
from pathlib import Path

from primus.backends.megatron_bridge.container import PackedSequenceSpecs
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.engine.config import PackingConfig, SFTConfig

__all__ = ["absolute", "with_packing"]

_PART = "dataset.packed_sequence_specs"


def with_packing(made: SFTConfig, raw: Raw, specs: PackedSequenceSpecs | None, problems: list[str]) -> SFTConfig:
    """Return the configuration of rows with that of packs; as it is if nothing is packed."""
    if specs is None or specs.packed_sequence_size < 1:
        return made
    size, length = specs.packed_sequence_size, raw.config.model.seq_length
    if size != length:
        problems.append(
            f"{raw.where(f'{_PART}.packed_sequence_size')} must be model.seq_length, {length}: a pack is a sequence."
        )
    _at_least(raw, "pad_seq_to_mult", specs.pad_seq_to_mult, 1, problems)
    _at_least(raw, "max_single_sequence_length", specs.max_single_sequence_length, 2, problems)
    if specs.max_single_sequence_length is not None and specs.max_single_sequence_length > size:
        problems.append(f"{raw.where(f'{_PART}.max_single_sequence_length')} must be at most {size}, the size of a pack.")
    if specs.num_tokenizer_workers != -1:
        _at_least(raw, "num_tokenizer_workers", specs.num_tokenizer_workers, 1, problems, or_else=" or -1, one a core")
    for name in ("packed_val_data_path", "packed_metadata_path"):
        if getattr(specs, name) is not None and specs.packed_train_data_path is None:
            problems.append(f"{raw.where(f'{_PART}.{name}')} goes with packed_train_data_path: set it as well.")
    packing = PackingConfig(
        size=size,
        pad_multiple=specs.pad_seq_to_mult,
        max_sample_length=specs.max_single_sequence_length,
        train_file=absolute(specs.packed_train_data_path),
        validation_file=absolute(specs.packed_val_data_path),
        metadata_file=absolute(specs.packed_metadata_path),
    )
    return replace(made, packing=packing, cache_name=specs.tokenizer_model_name, workers=max(0, specs.num_tokenizer_workers))


def absolute(path: str | None) -> str | None:
    """Return a path that means the same wherever the run starts."""
    return None if path is None else str(Path(path).expanduser().absolute())


def _at_least(raw: Raw, name: str, value: int | None, least: int, problems: list[str], or_else: str = "") -> None:
    if value is not None and value < least:
        problems.append(f"{raw.where(f'{_PART}.{name}')} must be at least {least}{or_else}.")
