"""How a key row is written: `live`, `pending`, `inert`, `retired` and `removed` name the status, `section` stamps the chapter.

A row's doc says what the key means here in one or two sentences. Defaults are not repeated: they live in the preset files only.
"""

import dataclasses

from primus.core.keys import Key

__all__ = ["inert", "live", "pending", "removed", "retired", "section"]

Choices = tuple[str | int, ...]
Number = float | None


def live(
    name: str,
    kind: str,
    target: str,
    doc: str,
    *,
    choices: Choices = (),
    minimum: Number = None,
    maximum: Number = None,
    above: Number = None,
    below: Number = None,
    aka: tuple[str, ...] = (),
) -> Key:
    """Return the row of a key that acts; `target` is where its value goes in the container."""
    row = Key(name, kind, choices, "live", target, doc, minimum=minimum, maximum=maximum, above=above, below=below)
    return dataclasses.replace(row, aka=aka)


def pending(
    name: str, kind: str, awaits: str, doc: str, *, choices: Choices = (), minimum: Number = None, maximum: Number = None
) -> Key:
    """Return the row of a key whose subject `awaits` is not built; a value other than the preset's stops the run."""
    return Key(name, kind, choices, "pending", None, doc, f"{awaits} not built yet", minimum=minimum, maximum=maximum)


def inert(name: str, kind: str, reason: str, doc: str, *, choices: Choices = ()) -> Key:
    """Return the row of a key without effect on a run; changing it warns with `reason`."""
    return Key(name, kind, choices, "inert", None, doc, reason)


def retired(name: str, kind: str, instead: str, doc: str) -> Key:
    """Return the row of an old name that stays in the presets at its neutral value; any other value stops the run."""
    return Key(name, kind, (), "removed", None, doc, f"{name} is no longer supported; {instead}")


def removed(name: str, successor: str, doc: str) -> Key:
    """Return the row of a name that is gone from the presets; passing it stops the run and names the successor."""
    return Key(name, "any?", (), "removed", None, doc, f"{name} has been removed; please use {successor} instead")


def section(number: str, *rows: Key) -> tuple[Key, ...]:
    """Stamp rows with the section of the reference page that lists them."""
    return tuple(dataclasses.replace(row, section=number) for row in rows)
