"""`primus config docs`: the key reference (docs/keys.md, docs/bridge-keys.md) from the rows and presets."""

from pathlib import Path
from typing import Annotated

import typer

from primus.cli.doors import FRAMEWORKS, keys_of, sections_of
from primus.core.experiment import load_presets
from primus.core.keys import key_page

__all__ = ["docs", "page"]


_PRESETS = {"megatron": ("pre_trainer.yaml", "language_model.yaml"), "megatron_bridge": ("sft_trainer.yaml",)}
"""Module preset, and model preset if a framework has one that all models extend."""


def page(framework: str) -> str:
    """Return the Markdown of the reference; InputError if the framework has no door."""
    keys, titles = keys_of(framework), sections_of(framework)
    presets = _PRESETS[framework]
    words = " with ".join(f"`{name}`" for name in presets)
    if framework == "megatron_bridge":
        words += "; a key without one has the recipe's value, and null of what a flavor takes is that too"
    return key_page(keys, framework=framework, titles=titles, defaults=load_presets(framework, *presets), presets=words)


def docs(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of stdout.", show_default=False)] = None,
    framework: Annotated[str, typer.Option(help="The language whose keys are listed.")] = FRAMEWORKS[0],
) -> None:
    """Print the reference of all keys as Markdown."""
    if out is None:
        typer.echo(page(framework), nl=False)
    else:
        out.write_text(page(framework), encoding="utf-8")
