"""`Samples`: rows as tokens with a mask, cut to a length.

The tokens of a sample are one more than its inputs: each is an input but for the last, and a label but for the first.
"""

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from primus.engine.config import SFTConfig
from primus.engine.data.sft.chat import ChatReader
from primus.engine.data.sft.fields import is_conversation
from primus.engine.data.sft.prompts import Parts, PromptReader
from primus.engine.data.sft.rows import Rows
from primus.engine.data.tokenizer import Tokenizer
from primus.errors import InputError

__all__ = ["Sample", "Samples"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens of a row."""

    ids: NDArray[np.int64]
    trained: NDArray[np.bool_]
    """Of the same length: which tokens the model is to learn to say. The first cannot be one."""

    @property
    def num_inputs(self) -> int:
        """Tokens that the model reads."""
        return len(self.ids) - 1


class Samples:
    """The samples of rows."""

    def __init__(
        self, rows: Rows, config: SFTConfig, tokenizer: Tokenizer, *, tokenizer_model: str | None, max_length: int
    ) -> None:
        """`max_length` is of a sample's tokens. InputError if there are no rows, or no template that they need."""
        if len(rows) == 0:
            raise InputError(f"{config.train} has no rows")
        self._rows, self._config, self._max_length = rows, config, max_length
        self._has_turns = is_conversation(rows[0]) if config.chat is None else config.chat
        self._chat = ChatReader(config.chat_format, tokenizer_model, config.loss_on) if self._has_turns else None
        self._prompts = None if self._has_turns else PromptReader(config.prompt_format, tokenizer, tokenizer_model)
        self._has_told = self._has_told_length = False

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Sample:
        """Return a sample; InputError names its row if it lacks a field, or is too long where that is refused."""
        row, name = self._rows[number], self._rows.name(number)
        if self._chat is not None:
            ids, trained = self._chat.read(row, name)
            self._look_at_length(len(ids), name)
            kept = (
                slice(None, self._max_length) if self._config.truncation_method == "right" else slice(-self._max_length, None)
            )
            ids, trained = ids[kept], trained[kept]
        else:
            assert self._prompts is not None
            parts = self._prompts.read(row, name)
            total = sum(map(len, parts.before)) + len(parts.answer)
            self._look_at_length(total, name)
            before, answer = _cut(parts, total - self._max_length, left=self._config.truncation_method == "left")
            ids = [*before, *answer]
            trained = [self._config.loss_on == "all"] * len(before) + [True] * len(answer)
        if len(ids) < 2:
            raise InputError(f"{name} has {len(ids)} tokens; a sample needs two, one to read and one to say")
        if not any(trained[1:]) and not self._has_told:
            self._has_told = True
            log.warning("%s has no token left to train on: it counts for nothing; a longer seq_length may help", name)
        return Sample(np.array(ids, np.int64), np.array(trained, np.bool_))

    def lengths(self) -> list[int]:
        """Return the inputs of every sample."""
        return [self[number].num_inputs for number in range(len(self))]

    def _look_at_length(self, length: int, name: str) -> None:
        """Say once that samples are cut, or refuse them."""
        if length <= self._max_length:
            return
        if self._config.truncation_method != "error":
            if not self._has_told_length:
                self._has_told_length = True
                log.warning(
                    "%s has %d tokens, a sequence %d: it is cut, and so are others like it", name, length, self._max_length
                )
            return
        raise InputError(
            f"{name} has {length} tokens, more than the {self._max_length} of a sequence: raise seq_length, or let "
            "dataset.dataset_kwargs.truncation_method be right or left"
        )


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
