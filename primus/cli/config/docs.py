"""`primus config docs`: the key reference (docs/keys.md) from the rows and presets."""

from pathlib import Path
from typing import Annotated

import typer

from primus.cli.doors import keys_of, sections_of
from primus.core.experiment import load_presets
from primus.core.keys import key_page

__all__ = ["docs", "page"]


def page() -> str:
    """Return the Markdown of the reference."""
    defaults = load_presets("megatron", "pre_trainer.yaml", "language_model.yaml")
    return key_page(keys_of("megatron"), framework="megatron", titles=sections_of("megatron"), defaults=defaults)


def docs(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of stdout.", show_default=False)] = None,
) -> None:
    """Print the reference of all keys as Markdown."""
    if out is None:
        typer.echo(page(), nl=False)
    else:
        out.write_text(page(), encoding="utf-8")
