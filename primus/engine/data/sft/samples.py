"""`Samples`: rows as tokens with a mask, cut to a length.

The tokens of a sample are one more than its inputs: each is an input but for the last, and a label but for the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus.engine.config import SFTConfig
from primus.engine.data.sft.chat import ChatReader
from primus.engine.data.sft.fields import is_conversation
from primus.engine.data.sft.prompts import Parts, PromptReader
from primus.engine.data.sft.rows import Row, Rows
from primus.engine.data.tokenizer import Tokenizer
from primus.errors import InputError

__all__ = ["Sample", "Samples", "format_of", "reader"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens of a row."""

    ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    """Of the same length: which tokens the model is to learn to say. The first cannot be one."""
    lost: int = 0
    """Tokens that the row has more, and that are cut."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """What is to be said once of samples like it, by its kind."""

    @property
    def is_trained(self) -> bool:
        """Whether there is a token with a loss."""
        return bool(self.trained[1:].any())

    @property
    def num_inputs(self) -> int:
        """Tokens that the model reads."""
        return len(self.ids) - 1


def reader(config: SFTConfig, tokenizer: Tokenizer, tokenizer_model: str | None, *, is_chat: bool) -> ChatReader | PromptReader:
    """Return what makes tokens of rows; InputError if there is no template that they need."""
    if is_chat:
        return ChatReader(config.chat_format, tokenizer_model, config.loss_on)
    return PromptReader(config.prompt_format, tokenizer, tokenizer_model)


def format_of(reader: ChatReader | PromptReader, config: SFTConfig, max_length: int) -> dict[str, Any]:
    """Return what decides the tokens of a sample besides its row and the tokenizer; values of JSON."""
    return {
        **reader.format,
        "loss_on": config.loss_on,
        "length": max_length,
        "truncation_method": config.truncation_method,
    }


class Samples:
    """The samples of rows."""

    def __init__(
        self, rows: Rows, config: SFTConfig, tokenizer: Tokenizer, *, tokenizer_model: str | None, max_length: int
    ) -> None:
        """`max_length` is of a sample's tokens. InputError if there are no rows, or no template that they need."""
        if len(rows) == 0:
            raise InputError(f"{config.train} has no rows")
        self._rows, self._config, self._max_length = rows, config, max_length
        is_chat = is_conversation(rows[0]) if config.chat is None else config.chat
        self._reader = reader(config, tokenizer, tokenizer_model, is_chat=is_chat)

    def __len__(self) -> int:
        return len(self._rows)

    def state(self) -> object:
        """Return what tells its rows from others."""
        return self._rows.state()

    @property
    def format(self) -> dict[str, Any]:
        """What decides the tokens of a sample besides its row and the tokenizer; values of JSON."""
        return format_of(self._reader, self._config, self._max_length)

    def check(self, number: int) -> None:
        """Raise InputError, which names the row, if it is no sample; its text is not tokenised."""
        row, name = self._rows[number], self._rows.name(number)
        if isinstance(self._reader, ChatReader):
            self._reader.render(row, name)
        else:
            self._reader.fields(row, name)

    def __getitem__(self, number: int) -> Sample:
        """Return a sample; InputError names its row if it lacks a field, or is too long where that is refused."""
        row, name = self._rows[number], self._rows.name(number)
        ids, trained, total = self._read(row, name)
        if total > self._max_length and self._config.truncation_method == "error":
            raise InputError(
                f"{name} has {total} tokens, more than the {self._max_length} of a sequence: raise seq_length, or let "
                "dataset.dataset_kwargs.truncation_method be right or left"
            )
        if len(ids) < 2:
            raise InputError(f"{name} has {len(ids)} tokens; a sample needs two, one to read and one to say")
        remarks = {}
        if total > self._max_length:
            remarks["cut"] = f"{name} has {total} tokens, a sequence {self._max_length}: it is cut, and so are others like it"
        if not any(trained[1:]):
            remarks["mute"] = f"{name} has no token left to train on: it counts for nothing; a longer seq_length may help"
        return Sample(np.array(ids, np.int64), np.array(trained, np.bool_), lost=total - len(ids), remarks=remarks)

    def _read(self, row: Row, name: str) -> tuple[list[int], list[bool], int]:
        """Return the tokens that a sequence has room for, which are trained, and how many there were."""
        is_left, most = self._config.truncation_method == "left", self._max_length
        if isinstance(self._reader, ChatReader):
            ids, trained = self._reader.read(row, name)
            kept = slice(-most, None) if is_left else slice(None, most)
            return ids[kept], trained[kept], len(ids)
        parts = self._reader.read(row, name)
        total = sum(map(len, parts.before)) + len(parts.answer)
        before, answer = _cut(parts, total - most, left=is_left)
        return [*before, *answer], [self._config.loss_on == "all"] * len(before) + [True] * len(answer), total


def _cut(parts: Parts, excess: int, *, left: bool) -> tuple[list[int], list[int]]:
    """Return the tokens before the answer, and the answer, without `excess` tokens.

    The parts that are to lose tokens first share the loss evenly; what they do not have the answer loses, then the others.
    """
    before, answer = [list(part) for part in parts.before], parts.answer
    chosen = [before[number] for number in parts.cut_first]
    while excess > 0 and any(chosen):
        full = [part for part in chosen if part]
        share, rest = divmod(excess, len(full))
        for number, part in enumerate(full):
            taken = min(len(part), share + (number < rest))
            del part[slice(0, taken) if left else slice(len(part) - taken, None)]
            excess -= taken
    flat = [token for part in before for token in part]
    if excess <= 0:
        return flat, answer
    kept = len(answer) - excess
    return flat[: len(flat) + min(0, kept)], answer[: max(0, kept)]
