"""A conversation as tokens, and which of them the assistant says: `ChatReader` is the name to use.

A template with a generation block marks the assistant's words itself; of any other `spans.py` tells them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from primus.engine.config.sft import ChatConfig
from primus.engine.data.sft.rows import Row
from primus.engine.data.sft.spans import assistant_spans
from primus.errors import InputError

__all__ = ["ChatReader"]

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool"}
LossOn = Literal["answers", "last_answer", "all"]


class ChatReader:
    """Makes tokens of conversations by a Hugging Face tokenizer's chat template."""

    def __init__(self, config: ChatConfig, tokenizer_model: str | None, loss_on: LossOn) -> None:
        """InputError if there is no tokenizer of Hugging Face, or it has no template."""
        from transformers import AutoTokenizer

        if tokenizer_model is None:
            raise InputError("conversations need a tokenizer with a chat template: set hf_path, or tokenizer_model to a folder")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_model)
        self._template = config.template or self._tokenizer.chat_template
        if not self._template:
            raise InputError(
                f"the tokenizer {tokenizer_model} has no chat template, which conversations need: set "
                "dataset.dataset_kwargs.chat_template, or choose the tokenizer of a chat model"
            )
        self._tools = json.loads(config.tools) if config.tools else None
        self._loss_on = loss_on
        self._is_marked = "{% generation" in self._template or "{%- generation" in self._template

    @property
    def format(self) -> dict[str, Any]:
        """How rows are read; values of JSON."""
        return {"chat_template": self._template, "tools": self._tools}

    def read(self, row: Row, name: str) -> tuple[list[int], list[bool]]:
        """Return tokens, and which are trained; InputError, which names the row, if it is no conversation."""
        messages = _messages(row, name)
        tools = row.get("tools") or self._tools
        with self._naming(name):
            text = self._text(messages, tools)
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans = [(0, len(text))] if self._loss_on == "all" else self._spans(messages, tools, text, name)
        if self._loss_on == "last_answer":
            spans = spans[-1:]
        ids = list(encoded["input_ids"])
        trained = [any(_touches(place, span) for span in spans) for place in encoded["offset_mapping"]]
        eos = self._tokenizer.eos_token_id
        last = max((number for number, is_trained in enumerate(trained) if is_trained), default=-1)
        ends_with_answer = messages[-1]["role"] == "assistant"
        if eos is not None and ends_with_answer and last >= 0 and eos not in ids[last:]:
            ids, trained = [*ids, eos], [*trained, True]
        return ids, trained

    def render(self, row: Row, name: str) -> str:
        """Return the text of a row; InputError, which names the row, if it is no conversation that the template takes."""
        messages = _messages(row, name)
        with self._naming(name):
            return self._text(messages, row.get("tools") or self._tools)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Say which row it was, or that no row would do."""
        from jinja2 import TemplateSyntaxError

        try:
            yield
        except InputError:
            raise
        except TemplateSyntaxError as error:
            raise InputError(f"the chat template cannot be read: {error} (its line {error.lineno})") from error
        except Exception as error:  # a template raises whatever its author thought of
            raise InputError(f"{name}: the chat template does not take this conversation: {error}") from error

    def _text(self, messages: Sequence[dict[str, Any]], tools: Any, *, opened: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=self._template, tokenize=False, add_generation_prompt=opened
            )
        )

    def _spans(self, messages: list[dict[str, Any]], tools: Any, text: str, name: str) -> list[tuple[int, int]]:
        """Return where in the text the assistant speaks."""
        if self._is_marked:
            from transformers.utils.chat_template_utils import render_jinja_template

            _, marked = render_jinja_template(
                conversations=[messages],
                tools=tools,
                chat_template=self._template,
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
            return [(int(low), int(high)) for low, high in marked[0]]
        return assistant_spans(messages, text, lambda some, opened: self._text(some, tools, opened=opened), name)


def _messages(row: Row, name: str) -> list[dict[str, Any]]:
    """Return a row's messages as roles with content; ShareGPT's `from` and `value` too."""
    if "messages" in row:
        given = row["messages"]
        wanted = ("role", "content")
    elif "conversations" in row:
        given, wanted = row["conversations"], ("from", "value")
    else:
        raise InputError(f"{name} has neither messages nor conversations; it has {', '.join(row) or 'none'}")
    if not isinstance(given, list) or not all(isinstance(each, dict) and wanted[0] in each for each in given):
        raise InputError(f"{name}: messages must be a list of maps with {' and '.join(wanted)}")
    messages = [{**each, "role": _role(each[wanted[0]], name), "content": each.get(wanted[1])} for each in given]
    if "conversations" in row:
        messages = [{"role": each["role"], "content": each["content"]} for each in messages]
        if row.get("system"):
            messages.insert(0, {"role": "system", "content": row["system"]})
    return messages


def _role(given: object, name: str) -> str:
    role = _ROLES.get(str(given).lower())
    if role is None:
        raise InputError(f"{name}: {given!r} is no role; there are {', '.join(_ROLES)}")
    return role


def _touches(place: tuple[int, int], span: tuple[int, int]) -> bool:
    """Tell whether a token has a character of a span, as transformers' mask of the assistant's tokens has it.

    Some tokenizers take blanks out of a token's place in the text, so that one of nothing else is left without any, at its end.
    """
    (start, end), (low, high) = place, span
    return low < end and (start < high or start == end == high)
