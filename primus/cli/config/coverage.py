"""`primus config coverage`: how many keys act, and why the others do not."""

import json
from typing import Annotated, Any

import typer

from primus.cli.doors import FRAMEWORKS, keys_of
from primus.core.keys import coverage

__all__ = ["show_coverage"]


def show_coverage(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    framework: Annotated[str, typer.Option(help="The language whose keys are counted.")] = FRAMEWORKS[0],
) -> None:
    """Count keys by status and list those that do not act."""
    counted = coverage(keys_of(framework))
    typer.echo(json.dumps(counted, indent=2) if as_json else "\n".join(_lines(counted)))


def _lines(counted: dict[str, Any]) -> list[str]:
    rows = counted["keys"]
    lines = [f"{len(rows)} keys: {counted['live']} live, {counted['pending']} pending, {counted['inert']} inert"]
    for status in ("pending", "inert"):
        names = {name: row["reason"] for name, row in rows.items() if row["status"] == status}
        width = max(map(len, names), default=0)
        lines += ["", f"{status}:", *(f"  {name:{width}}  {reason}" for name, reason in names.items())]
    return lines
