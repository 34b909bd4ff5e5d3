"""How verbs take KEY=VALUE words: what the option parser does not know is left to the experiment's own parser."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["TAKES_WORDS", "ExperimentFile"]

TAKES_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a verb that passes `context.args` on as words."""

ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment YAML.", show_default=False)]
