"""`check_rows`: are there rows, and do they become samples? Asked before anything starts. No torch.

Of a small file all rows are looked at, of a larger one some all over it: their fields, and the text that a chat template makes
of them. A few are tokenised.
"""

from collections.abc import Iterator
from pathlib import Path

from primus.engine.config import ConfigContainer, SFTConfig
from primus.engine.data.sft.opening import Opener
from primus.engine.data.sft.own_packs import check_packs
from primus.engine.data.sft.rows import Part, Rows
from primus.engine.data.sft.sources import Splits, open_splits
from primus.engine.data.tokenizer import Tokenizer
from primus.errors import InputError

__all__ = ["check_rows"]

_CHECKED = 4096
"""Rows, of each split."""
_TOKENISED = 3
_SHOWN = 3
"""Wrong rows that are told of each split."""
_PACKS = "dataset.packed_sequence_specs.packed_{}_data_path"


def check_rows(config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer | None) -> list[str]:
    """Return what is wrong with rows and packs that lie on this machine; those of the hub are looked for by the run.

    Without a tokenizer files are only opened.
    """
    try:
        packing = rows.packing
        if packing is not None and packing.train_file is not None:
            return list(_of_packs(config, rows, tokenizer))
        if not Path(rows.train).exists():
            return []
        splits = open_splits(rows)
        batch = config.train.global_batch_size
        if packing is None and len(splits.train) < batch:
            count = f"{len(splits.train)} rows to train on{_apart(splits, rows, batch)}"
            return [f"{rows.train} has {count}, fewer than global_batch_size {batch}: lower it"]
        return [] if tokenizer is None else list(_of_splits(splits, Opener.of(config, rows, tokenizer)))
    except InputError as error:
        return list(error.problems)


def _apart(splits: Splits, rows: SFTConfig, batch: int) -> str:
    """Return a word on rows that validate, if they come out of the same file and would do for a batch."""
    if not isinstance(splits.validation, Part) or len(splits.train) + len(splits.validation) < batch:
        return ""
    return f" ({len(splits.validation)} more are set apart to validate on, by val_proportion {rows.val_proportion})"


def _of_packs(config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer | None) -> Iterator[str]:
    assert rows.packing is not None
    files = {"train": rows.packing.train_file, "val": rows.packing.validation_file if rows.do_validation else None}
    for name, spec in files.items():
        if spec is None or tokenizer is None:
            continue
        try:
            check_packs(Opener.of(config, rows, tokenizer), spec, _PACKS.format(name))
        except InputError as error:
            yield from error.problems


def _of_splits(splits: Splits, opener: Opener) -> Iterator[str]:
    for rows in (splits.train, splits.validation, splits.test):
        if rows is not None:
            yield from _wrong(rows, opener, learns=rows is splits.train)


def _wrong(rows: Rows, opener: Opener, *, learns: bool) -> Iterator[str]:
    samples, told = opener.samples(rows), dict[str, None]()
    for number in range(0, len(rows), -(-len(rows) // _CHECKED)):
        try:
            samples.check(number)
        except InputError as error:
            told |= dict.fromkeys(error.problems)
            if len(told) == _SHOWN:
                yield from [*told, f"rows behind {rows.name(number)} were not looked at: more may be wrong"]
                return
    if told:
        yield from told
        return
    few, many = (range(0, len(rows), -(-len(rows) // count)) for count in (_TOKENISED, _CHECKED))
    try:
        trained = [samples[number].is_trained for number in few]
        if learns and not any(trained) and not any(samples[number].is_trained for number in many):
            yield (
                f"{rows.name(0)} has no token to train on, and so it is with all {len(many)} rows that were looked at: "
                "conversations need words of the assistant, and seq_length room for an answer"
            )
    except InputError as error:
        yield from error.problems
