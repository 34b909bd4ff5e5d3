"""What the messages of a row say, as roles with content: `messages_of` and `tools_of` are the names to use.

A message without content would be trained as the word None by many templates, and one of parts as Python writes a list, so
parts that are text become one text, and what no template can know is refused.
"""

from collections.abc import Mapping
from typing import Any

from primus.engine.data.sft.rows import Row, parsed
from primus.errors import InputError

__all__ = ["messages_of", "tools_of"]

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
}


def messages_of(row: Row, name: str) -> list[dict[str, Any]]:
    """Return a row's messages; ShareGPT's `from` and `value` too. InputError, which names the row, if it is no conversation."""
    if "messages" in row:
        given = row["messages"]
        wanted = ("role", "content")
    elif "conversations" in row:
        given, wanted = row["conversations"], ("from", "value")
    else:
        raise InputError(f"{name} has neither messages nor conversations; it has {', '.join(row) or 'none'}")
    if not isinstance(given, list) or not all(isinstance(each, dict) and wanted[0] in each for each in given):
        raise InputError(f"{name}: messages must be a list of maps with {' and '.join(wanted)}")
    is_sharegpt = wanted[0] == "from"
    messages = [
        {
            **({} if is_sharegpt else each),
            "role": _role(each[wanted[0]], name),
            "content": _content(each, wanted, f"{name}: message {number}"),
        }
        for number, each in enumerate(given, start=1)
    ]
    if is_sharegpt and row.get("system"):
        messages.insert(0, {"role": "system", "content": row["system"]})
    return messages


def tools_of(row: Row, name: str) -> Any:
    """Return a row's tools, which may be written as JSON; InputError, which names the row, if they are none."""
    tools = row.get("tools")
    if not isinstance(tools, str) or not tools.strip():
        return tools or None
    try:
        return parsed(tools.encode())
    except ValueError as error:
        raise InputError(f"{name}: tools are neither a list nor one that is written as JSON: {error}") from error


def _role(given: object, name: str) -> str:
    role = _ROLES.get(str(given).lower())
    if role is None:
        raise InputError(f"{name}: {given!r} is no role; there are {', '.join(_ROLES)}")
    return role


def _content(message: Mapping[str, Any], wanted: tuple[str, str], place: str) -> str | None:
    """Return what a message says; None if it says something else, like the call of a tool."""
    content = message.get(wanted[1])
    if content is None:
        if wanted[1] == "value" or not any(value for field, value in message.items() if field not in wanted):
            raise InputError(f"{place} has no {wanted[1]}; leave the message out, or let it be empty text")
        return None
    if isinstance(content, list):
        return "".join(_part(part, place) for part in content)
    if isinstance(content, Mapping):
        raise InputError(f"{place}: {wanted[1]} is a map, and a text is needed")
    return str(content)


def _part(part: object, place: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InputError(f"{place} has a part of type {kind}; only parts with type text, and the text, are trained")
    return str(part["text"])
