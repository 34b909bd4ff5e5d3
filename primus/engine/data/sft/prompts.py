"""A prompt and its answer as tokens: `PromptReader` is the name to use.

The parts of a template are tokenised one by one, so that no token belongs to prompt and answer both. A blank before a field
goes to the field if the tokenizer's tokens begin with blanks, and is none of the text if they do not.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from primus.engine.config.sft import PromptConfig
from primus.engine.data.sft.fields import prompt_fields
from primus.engine.data.sft.rows import Row
from primus.engine.data.tokenizer import Tokenizer
from primus.errors import InputError

__all__ = ["Parts", "PromptReader"]

_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Parts:
    """Tokens of a sample before it is cut: what stands before the answer, part by part, and the answer."""

    before: list[list[int]]
    cut_first: list[int]
    """Which of them lose tokens of a sample that is too long."""
    answer: list[int]


class PromptReader:
    """Makes tokens of rows by a template."""

    def __init__(self, config: PromptConfig, tokenizer: Tokenizer, tokenizer_model: str | None) -> None:
        """InputError if the template has no place for the answer, or one behind it, or the tokenizer lacks a token."""
        self._config, self._tokenizer = config, tokenizer
        self._bos = [_special(tokenizer_model, "bos")] if config.add_bos else []
        self._sep = [_special(tokenizer_model, "sep")] if config.add_sep else []
        template = config.template or f"{{input}} {{{config.label_key}}}"
        names = _PLACE.findall(template)
        if not names or names[-1] != config.label_key or not template.endswith(f"{{{config.label_key}}}"):
            raise InputError(f"prompt_template {template!r} must end with {{{config.label_key}}}, the place of the answer")
        self._pieces = _PLACE.split(template)
        self._cut_first = self._fields_to_cut(template, names[:-1])
        joined, apart = tokenizer.tokenize("1 2"), [*tokenizer.tokenize("1"), *tokenizer.tokenize("2")]
        self._keeps_blanks = joined != apart

    @property
    def format(self) -> dict[str, Any]:
        """How rows are read; values of JSON."""
        return {"prompt_format": asdict(self._config)}

    def fields(self, row: Row, name: str) -> dict[str, str]:
        """Return a row's texts; InputError, which names the row, if one that the template needs is not there."""
        config = self._config
        found = prompt_fields(row, config.label_key, name, as_is=config.template is not None)
        missing = next((piece for piece in self._pieces[1::2] if piece not in found), None)
        if missing in row:
            raise InputError(f"{name}: {missing} is a list or a map, and the template needs a text there")
        if missing is not None:
            raise InputError(f"{name} has no field {missing}, which the template needs; it has {', '.join(row)}")
        return found

    def read(self, row: Row, name: str) -> Parts:
        """Return a row's tokens; InputError, which names the row, if a field that the template needs is not there."""
        tokenizer = self._tokenizer
        fields = self.fields(row, name)
        before: list[list[int]] = [self._bos] if self._bos else []
        cut_first: list[int] = []
        blank = ""
        for number, piece in enumerate(self._pieces):
            if number % 2 == 0:
                text = piece.removesuffix(" ")
                if text:
                    before.append(tokenizer.tokenize(text))
                blank = " " if piece != text and self._keeps_blanks else ""
                continue
            ids = tokenizer.tokenize(blank + fields[piece].strip(" "))
            if number == len(self._pieces) - 2:
                return self._ended(before, cut_first, ids, name)
            if piece in self._cut_first:
                cut_first.append(len(before))
            before.append(ids)
        raise AssertionError("a template ends with the answer")

    def _fields_to_cut(self, template: str, before: Sequence[str]) -> Sequence[str]:
        """Return the fields that long samples lose tokens of; all before the answer, if none are chosen."""
        chosen = self._config.truncation_fields
        unknown = [name for name in chosen or () if name not in before]
        if unknown:
            raise InputError(
                f"truncation_field {', '.join(unknown)}: prompt_template {template!r} has no such field before its answer; "
                f"there {'is' if len(before) == 1 else 'are'} {', '.join(before) or 'none'}"
            )
        return before if chosen is None else chosen

    def _ended(self, before: list[list[int]], cut_first: list[int], answer: list[int], name: str) -> Parts:
        if self._sep:
            before.append(self._sep)
        return Parts(before, cut_first, [*answer, self._tokenizer.eod] if self._config.add_eos else answer)


def _special(tokenizer_model: str | None, kind: str) -> int:
    from transformers import AutoTokenizer

    found = None if tokenizer_model is None else getattr(AutoTokenizer.from_pretrained(tokenizer_model), f"{kind}_token_id")
    if found is None:
        raise InputError(f"add_{kind} is true, but the tokenizer {tokenizer_model} names no {kind} token: leave add_{kind} out")
    return int(found)
