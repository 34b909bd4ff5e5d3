"""A conversation as tokens, and which of them the assistant says: `ChatReader` is the name to use.

A template with a generation block marks the assistant's words itself; of any other `spans.py` tells them. What messages may
say, `messages.py` tells.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from primus.engine.config.sft import ChatConfig
from primus.engine.data.sft.messages import messages_of, tools_of
from primus.engine.data.sft.rows import Row
from primus.engine.data.sft.spans import assistant_spans
from primus.errors import InputError

__all__ = ["ChatReader"]

_ANSWER = "\N{ASTERISM}answer\N{ASTERISM}"
"""Text that no template writes."""
LossOn = Literal["answers", "last_answer", "all"]


class ChatReader:
    """Makes tokens of conversations by a Hugging Face tokenizer's chat template."""

    def __init__(self, config: ChatConfig, tokenizer_model: str | None, loss_on: LossOn) -> None:
        """InputError if there is no tokenizer of Hugging Face, or it has no template."""
        from transformers import AutoTokenizer

        if tokenizer_model is None:
            raise InputError("conversations need a tokenizer with a chat template: set hf_path, or tokenizer_model to a folder")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_model)
        if not self._tokenizer.is_fast:
            raise InputError(
                f"the tokenizer {tokenizer_model} is a slow one, which does not tell the place of a token in its text: "
                "conversations need a fast one, with a tokenizer.json"
            )
        self._tools = json.loads(config.tools) if config.tools else None
        template = config.template or _own_template(self._tokenizer, self._tools)
        if not template:
            raise InputError(
                f"the tokenizer {tokenizer_model} has no chat template, which conversations need: set "
                "dataset.dataset_kwargs.chat_template, or choose the tokenizer of a chat model"
            )
        self._template = template
        if self._tools and "tools" not in template:
            raise InputError("dataset.dataset_kwargs.tool_schemas: the chat template has no place for tools; leave them out")
        self._loss_on = loss_on
        self._is_marked = "{% generation" in template or "{%- generation" in template

    @property
    def format(self) -> dict[str, Any]:
        """How rows are read; values of JSON."""
        return {"chat_template": self._template, "tools": self._tools}

    def read(self, row: Row, name: str) -> tuple[list[int], list[bool]]:
        """Return tokens, and which are trained; InputError, which names the row, if it is no conversation."""
        messages, tools = self._said(row, name)
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

    def question(self, text: str) -> tuple[list[int], list[int]]:
        """Return the tokens up to an answer to what a user says, and what ends an answer besides the end token, if anything.

        InputError if the template does not take it.
        """
        asked = [{"role": "user", "content": text}]
        with self._naming("a conversation of one question"):
            opened = self._text(asked, self._tools, opened=True)
            closed = self._text([*asked, {"role": "assistant", "content": _ANSWER}], self._tools)
        _, _, rest = closed.rpartition(_ANSWER)
        ids, behind = (self._tokenizer(each, add_special_tokens=False)["input_ids"] for each in (opened, rest.strip()))
        return list(ids), [token for token in behind[:1] if token in self._tokenizer.added_tokens_decoder]

    def render(self, row: Row, name: str) -> str:
        """Return the text of a row; InputError, which names the row, if it is no conversation that the template takes."""
        messages, tools = self._said(row, name)
        with self._naming(name):
            return self._text(messages, tools)

    def _said(self, row: Row, name: str) -> tuple[list[dict[str, Any]], Any]:
        """Return a row's messages and tools; InputError if the template would drop some of it."""
        messages, own = messages_of(row, name), tools_of(row, name)
        dropped = [
            word
            for word, is_said in (("tools", own), ("tool_calls", any(each.get("tool_calls") for each in messages)))
            if is_said and word not in self._template
        ]
        if dropped:
            raise InputError(
                f"{name} has {' and '.join(dropped)}, for which the chat template has no place: give one that has "
                "(dataset.dataset_kwargs.chat_template), or rows without"
            )
        return messages, own or self._tools

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


def _own_template(tokenizer: Any, tools: Any) -> str | None:
    """Return the template that comes with a tokenizer; of several by name the one that is meant for tools, or for none."""
    held = tokenizer.chat_template
    if isinstance(held, dict):
        held = (held.get("tool_use") if tools else None) or held.get("default")
    return None if held is None else str(held)


def _touches(place: tuple[int, int], span: tuple[int, int]) -> bool:
    """Tell whether a token has a character of a span, as transformers' mask of the assistant's tokens has it.

    Some tokenizers take blanks out of a token's place in the text, so that one of nothing else is left without any, at its end.
    """
    (start, end), (low, high) = place, span
    return low < end and (start < high or start == end == high)
