"""What verbs share: KEY=VALUE words, which the option parser leaves to the experiment's own, and examples under `--help`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["TAKES_WORDS", "ExperimentFile", "examples"]

TAKES_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a verb that passes `context.args` on as words."""

ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment YAML.", show_default=False)]


def examples(*commands: str) -> str:
    """Return what stands below a verb's options: commands to copy, a line each."""
    # The first character keeps the lines as they are.
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])
