"""`primus config explain KEY`: what a key means, what it takes, what the presets say, what it changes."""

from typing import Annotated

import typer

from primus.cli.doors import FRAMEWORKS, keys_of
from primus.core.experiment import Value, settings_of
from primus.core.keys import Key, parse_type, show_value, unknown_key_hint
from primus.errors import InputError

__all__ = ["explain"]


def explain(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A flat key such as lr, or a field such as optimizer.lr.", show_default=False)
    ],
    framework: Annotated[
        str | None, typer.Option(help="The language the key belongs to.", show_default="the first that knows it")
    ] = None,
) -> None:
    """Explain a key."""
    # Every language takes the keys of the first besides its own.
    rows = {each: keys_of(each) for each in ([framework, FRAMEWORKS[0]] if framework else FRAMEWORKS)}
    name = key.removeprefix("--").replace("-", "_")
    found = next((keys[name] for keys in rows.values() if name in keys), None)
    if found is None and framework != FRAMEWORKS[0]:
        from primus.backends.megatron_bridge.field_help import described

        lines = described(name)
        if lines:
            typer.echo("\n".join(lines))
            return
    if found is None:
        known = {known: row for keys in rows.values() for known, row in keys.items()}
        raise InputError(f"{key} is not a key of framework {' or '.join(rows)}. {unknown_key_hint(name, known)}")
    language = framework or next(each for each, keys in rows.items() if name in keys)
    typer.echo("\n".join(_lines(found, settings_of(name, language))))


def _lines(key: Key, settings: list[Value]) -> list[str]:
    spec = parse_type(key.type)
    lines = [key.name, f"  {key.doc}", "", f"  type     {spec}"]
    if key.choices:
        words = [show_value(choice) for choice in key.choices] + ["null"] * spec.is_nullable
        lines.append(f"  choices  {', '.join(words)}")
    if key.bounds:
        lines.append(f"  range    {', '.join(key.bounds)}")
    for position, value in enumerate(settings):
        lines.append(f"  {'default' if position == 0 else '':8} {show_value(value.value)}  ({value.source})")
    if key.target:
        lines.append(f"  changes  {key.target}")
    return [*lines, f"  status   {key.status}{f': {key.reason}' if key.reason else ''}"]
