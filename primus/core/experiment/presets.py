"""Where a preset named by an experiment lies: among those shipped with Primus, or beside the experiment."""

from primus.core.experiment.extends import CONFIGS, NamedFile, relative
from primus.core.experiment.nearest import by_nearness, did_you_mean
from primus.core.experiment.value import Value

__all__ = ["find_preset", "frameworks", "shipped_presets"]


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


def check_framework(wanted: Value, problems: list[str]) -> bool:
    """Tell whether the framework exists, and say so if not."""
    known = frameworks()
    if wanted.value in known:
        return True
    problems.append(f"framework {wanted.value} ({wanted.source}) is not known. {did_you_mean(str(wanted.value), known)}")
    return False
