"""The arguments that name data, in one form: `normalise_dataset_arguments` is the name to use.

Files reach a run as a list, a text, a list that is written as a text, or as nothing in several spellings.
"""

import ast
from typing import Any

from primus.errors import ConfigError

__all__ = ["FILES", "LISTS", "normalise_dataset_arguments"]

LISTS = ("data_paths", "train_data_path", "valid_data_path", "test_data_path")
"""Arguments that are lists of prefixes."""
FILES = ("data_args_path", "per_split_data_args_path")
"""Arguments that are one file."""
_SEQUENCES = (str, list, tuple, set, type(None))


def normalise_dataset_arguments(arguments: dict[str, Any]) -> None:
    """Bring the arguments that are there into one form, in place: lists or None, texts or None, and `mock` a bool.

    Data that is named is not made up, so `mock` is then false; `mock_data` is an older word for it. ConfigError for a `mock`
    that is neither true nor false, and for names of another type.
    """
    problems = [
        f"{name} {value!r} must be {words}"
        for names, kinds, words in ((LISTS, _SEQUENCES, "a list of prefixes"), (FILES, (str, type(None)), "a file"))
        for name, value in ((name, arguments.get(name)) for name in names)
        if not isinstance(value, kinds)
    ]
    if problems:
        raise ConfigError(problems)
    for name in LISTS:
        if name in arguments:
            arguments[name] = _prefixes(arguments[name])
    for name in FILES:
        if name in arguments:
            arguments[name] = None if _is_blank(arguments[name]) else str(arguments[name]).strip()
    older = arguments.pop("mock_data", None)
    word = "mock" if arguments.get("mock") is not None else "mock_data"
    mock = _as_bool(word, arguments.pop("mock", None) if word == "mock" else older)
    arguments.pop("mock", None)
    if any(arguments.get(name) is not None for name in (*LISTS, *FILES)):
        mock = False
    if mock is not None:
        arguments["mock"] = mock


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("", "none"))


def _prefixes(value: Any) -> list[str] | None:
    if _is_blank(value):
        return None
    if isinstance(value, str):
        value = _literal(value.strip())
    items = [str(each) for each in (sorted(value) if isinstance(value, set) else value) if not _is_blank(each)]
    return items or None


def _literal(text: str) -> Any:
    """Return the list that a text spells, or the text as the only item."""
    if text.startswith(("[", "(")):
        try:
            read = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return [text]
        if isinstance(read, (list, tuple)):
            return read
    return [text]


def _as_bool(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise ConfigError(f"{name} {value!r} must be true or false")
