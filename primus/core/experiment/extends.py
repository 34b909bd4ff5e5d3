"""A file with everything it extends.

`extends` is one path or a list, relative to the file that holds it; a path that begins with `primus/configs/` names a shipped
preset. The files are laid over one another in order, the file itself last.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from primus.core.experiment.document import read_document
from primus.core.experiment.value import PRESET_PREFIX, Tree, Value, merged
from primus.errors import ConfigError

__all__ = ["CONFIGS", "NamedFile", "Reading", "read_with_extends", "relative"]

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
"""The presets shipped with Primus."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file on disk and what messages call it."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What all files of one experiment share."""

    env: Mapping[str, str]
    problems: list[str] = field(default_factory=list)


def relative(base: NamedFile, text: str) -> NamedFile:
    """Return the file that `text` means inside `base`."""
    given = Path(text).expanduser()
    path = Path(os.path.normpath(base.path.parent / given))
    if text.startswith(PRESET_PREFIX) and not path.exists():
        path = CONFIGS / text.removeprefix(PRESET_PREFIX)
    if path.is_relative_to(CONFIGS):
        return NamedFile(path, PRESET_PREFIX + path.relative_to(CONFIGS).as_posix())
    return NamedFile(path, os.path.normpath(Path(base.name).parent / given))


def read_with_extends(file: NamedFile, reading: Reading, chain: tuple[NamedFile, ...] = ()) -> Tree:
    """Read `file` and the files it extends; `chain` holds the files that led here."""
    if file.path in [above.path for above in chain]:
        raise ConfigError(f"extends goes in a circle: {' -> '.join(f.name for f in (*chain, file))}")
    own = read_document(file.path, file.name, reading.env, reading.problems)
    if "bases" in own.children:
        source = own.children["bases"].source
        reading.problems.append(f"{source}: bases is not a word of Primus and inherits nothing; write extends")
    tree = Tree({}, own.source)
    for text, source in _parents(own, reading.problems):
        parent = relative(file, text)
        if not parent.path.is_file():
            reading.problems.append(f"{source}: extends {text}, but there is no file {parent.name}{_meant(text)}")
            continue
        tree = merged(tree, read_with_extends(parent, reading, (*chain, file)))
    rest = {name: child for name, child in own.children.items() if name not in ("extends", "bases")}
    return merged(tree, Tree(rest, own.source))


def _meant(text: str) -> str:
    """Return a hint if shipped presets bear the name of a file that is not there."""
    found = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml") if path.name == Path(text).name)
    return f"; did you mean {' or '.join(PRESET_PREFIX + name for name in found)}?" if found else ""


def _parents(tree: Tree, problems: list[str]) -> list[tuple[str, str]]:
    """Return the texts under `extends` with their place."""
    node = tree.children.get("extends", Value([], tree.source))
    texts = node.value if isinstance(node, Value) else None
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        problems.append(f"{node.source}: extends is one path or a list of paths")
        return []
    return [(text, node.source) for text in texts]
