"""`check_rows`: are there rows, and does the first one become a sample? Asked before anything starts. No torch."""

from pathlib import Path

from primus.engine.config import ConfigContainer, SFTConfig
from primus.engine.data.sft.fields import is_conversation
from primus.engine.data.sft.samples import Samples
from primus.engine.data.sft.sources import open_splits
from primus.engine.data.tokenizer import Tokenizer
from primus.errors import InputError

__all__ = ["check_rows"]


def check_rows(config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer | None) -> list[str]:
    """Return what is wrong with rows that lie on this machine; those of the hub are looked for by the run.

    Conversations are not read: their templates need a library that loads slowly. Without a tokenizer files are only opened.
    """
    if not Path(rows.train).exists():
        return []
    try:
        splits = open_splits(rows)
        batch = config.train.global_batch_size
        if rows.packing is None and len(splits.train) < batch:
            return [f"{rows.train} has {len(splits.train)} rows to train on, fewer than global_batch_size {batch}: lower it"]
        is_chat = is_conversation(splits.train[0]) if rows.chat is None else rows.chat
        if tokenizer is not None and not is_chat:
            Samples(splits.train, rows, tokenizer, tokenizer_model=None, max_length=config.model.seq_length)[0]
    except InputError as error:
        return list(error.problems)
    return []
