"""Where a preset named by an experiment lies, among those shipped with Primus or beside the experiment, and what they say."""

import re

from primus.core.experiment.document import read_document
from primus.core.experiment.extends import CONFIGS, NamedFile, relative
from primus.core.experiment.nearest import by_nearness, did_you_mean
from primus.core.experiment.value import PRESET_PREFIX, Value, flat

__all__ = ["check_framework", "find_preset", "settings_of", "shipped_presets"]


def frameworks() -> list[str]:
    """Return the configuration languages that have presets."""
    return sorted(folder.name for folder in (CONFIGS / "modules").iterdir() if folder.is_dir())


def shipped_presets(kind: str, framework: str) -> list[str]:
    """Return the names of the shipped `modules` or `models` presets of a framework."""
    folder = CONFIGS / kind / framework
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))


def find_preset(kind: str, framework: str, wanted: Value, experiment: NamedFile, problems: list[str]) -> NamedFile | None:
    """Return the preset file, or None after saying which there are."""
    name = str(wanted.value)
    if framework not in frameworks():
        return None
    shipped = CONFIGS / kind / framework / name
    if name in shipped_presets(kind, framework):
        return relative(experiment, str(shipped))
    beside = relative(experiment, name)
    if beside.path.is_file():
        return beside
    there_are = by_nearness(name, shipped_presets(kind, framework))
    word = {"modules": "config", "models": "model"}[kind]
    problems.append(
        f"{word} {name} ({wanted.source}): no such preset in primus/configs/{kind}/{framework}, no such file beside the "
        f"experiment. There are {', '.join(there_are) or 'none'}."
    )
    return None


def settings_of(key: str, framework: str) -> list[Value]:
    """Return what each shipped preset itself says about a key, module presets first, inherited values left out."""
    folders = [CONFIGS / "modules" / framework, CONFIGS / "models" / framework]
    files = [CONFIGS / "modules" / "module_base.yaml", *(path for folder in folders for path in sorted(folder.rglob("*.yaml")))]
    mentions = re.compile(rf"^{re.escape(key)}\s*:", re.MULTILINE)
    found = []
    for path in files:
        # Composing every preset would take longer than the answer is worth.
        if mentions.search(path.read_text(encoding="utf-8")):
            name = PRESET_PREFIX + path.relative_to(CONFIGS).as_posix()
            found.append(flat(read_document(path, name, {}, []).children[key]))
    return found


def check_framework(wanted: Value, problems: list[str]) -> bool:
    """Tell whether the framework exists, and say so if not."""
    known = frameworks()
    if wanted.value in known:
        return True
    problems.append(f"framework {wanted.value} ({wanted.source}) is not known. {did_you_mean(str(wanted.value), known)}")
    return False
