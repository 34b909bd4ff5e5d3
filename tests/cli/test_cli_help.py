"""Every verb shows examples under `--help`, and each of them is a command that this program takes."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from primus.cli.main import app


def verbs(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the commands that do something, with what is typed before their options."""
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        yield path, command


VERBS = dict(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("verb", VERBS)
def test_examples_are_commands_that_the_verb_takes(primus, verb):
    shown = re.findall(rf"^ +primus ({verb} .*|{verb})$", primus(*verb.split(), "--help").out, re.MULTILINE)
    assert len(shown) == (VERBS[verb].epilog or "").count("\n  primus ") > 0
    for line in shown:
        words = shlex.split(line)[len(verb.split()) :]
        assert VERBS[verb].make_context(verb, words) is not None
