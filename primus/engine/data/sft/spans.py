"""Where in the text of a conversation the assistant speaks, if its template does not mark it: `assistant_spans` tells.

A template that only ever adds text shows it by what a turn adds. One that writes a turn otherwise when another follows, like
Qwen3's, which drops the thoughts of earlier answers, is asked where a turn's content stands: that moves when the content does.
What is trained is then the turn as the whole conversation has it. It is refused if turns cannot be told from one another.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from primus.errors import InputError

__all__ = ["assistant_spans"]

_OTHER = "\x02another content\x03"
"""No conversation holds it."""

Message = dict[str, Any]
Render = Callable[[Sequence[Message], bool], str]
"""Messages, and whether the assistant's turn is opened behind them, to text."""


def assistant_spans(messages: Sequence[Message], text: str, render: Render, name: str) -> list[tuple[int, int]]:
    """Return the parts of `text`, the rendered messages, that the assistant says; InputError if that cannot be told."""
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    spans = []
    if answers[:1] == [0]:
        # No template writes a conversation of no messages.
        return _by_content(messages, text, render, name)
    for number in answers:
        before, after = render(messages[:number], True), render(messages[: number + 1], False)
        if not (text.startswith(after) and after.startswith(before)):
            return _by_content(messages, text, render, name)
        # Templates part turns by a line: it comes after the end of the answer.
        spans.append((len(before), max(len(before), len(after.rstrip()))))
    return spans


def _by_content(messages: Sequence[Message], text: str, render: Render, name: str) -> list[tuple[int, int]]:
    spans, others, behind = [], [], 0
    for number, message in enumerate(messages):
        place = _place(messages, number, text, render)
        if place is None:
            # The template leaves it out, so nothing of it is there to learn.
            continue
        if message["role"] == "assistant":
            start = _start(messages[: max(number, 1)], text[behind : place[0]], render)
            ending = _ending(messages[: number + 1], text[place[1] :], render)
            if start is None or ending is None:
                raise _untold(name)
            spans.append((behind + start, place[1] + ending))
        else:
            others.append(place)
        behind = place[1]
    taken = sorted((low, high) for low, high in (*spans, *others) if low < high)
    if any(high > low for (_, high), (low, _) in pairwise(taken)):
        raise _untold(name)
    return spans


def _place(messages: Sequence[Message], number: int, text: str, render: Render) -> tuple[int, int] | None:
    """Return where a message's content makes a difference to the text; None if nowhere."""
    changed = render([*messages[:number], {**messages[number], "content": _OTHER}, *messages[number + 1 :]], False)
    if changed == text:
        return None
    start = _alike(text, changed)
    return start, len(text) - _alike(text[start:][::-1], changed[start:][::-1])


def _alike(one: str, other: str) -> int:
    return next((number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _start(earlier: Sequence[Message], before: str, render: Render) -> int | None:
    """Return where in the text before an answer's content, behind the last message's, the assistant's own words begin."""
    closed, opened = render(earlier, False), render(earlier, True)
    opening = opened.removeprefix(closed) if opened.startswith(closed) else ""
    if opening in before:
        return before.rfind(opening) + len(opening)
    # Templates that ask for thoughts open the turn by more than they keep of it.
    return len(before) if any(before.endswith(opening[:length]) for length in range(1, len(opening))) else None


def _ending(messages: Sequence[Message], behind: str, render: Render) -> int | None:
    """Return how much of the text behind an answer's content ends it: what does so where the answer is the last message."""
    last = render(messages, False)
    place = _place(messages, len(messages) - 1, last, render)
    ending = "" if place is None else last[place[1] :].rstrip()
    return next((len(each) for each in (ending, ending.lstrip()) if behind.startswith(each)), None)


def _untold(name: str) -> InputError:
    return InputError(
        f"{name}: the chat template rewrites earlier turns so that the assistant's words cannot be told from the rest: "
        "give a template with a generation block (dataset.dataset_kwargs.chat_template), or one answer a row"
    )
