"""What an experiment says once it is read: who runs it, where it goes, and the flat parameters of its modules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from primus.core.experiment.value import Node, Value, shipped

__all__ = ["FILE_WORDS", "META", "Experiment", "Module"]

META = ("work_group", "user_name", "exp_name", "workspace", "platform")
"""Words of an experiment file that stand above its modules; fields of `Experiment`."""
FILE_WORDS = (*META, "framework", "modules", "models")
"""All words at the top of an experiment file; every other word on the command line is a parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One role of the experiment with its parameters, presets included."""

    role: str
    """Name under `modules`."""
    framework: Value
    """Configuration language of the keys."""
    config: Value
    """Module preset as the experiment names it."""
    model: Value
    """Model preset as the experiment names it."""
    params: Mapping[str, Value]
    """Flat keys: command line over experiment over module preset over model preset."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The same with a source for every value inside a map."""

    @property
    def defaults(self) -> dict[str, Value]:
        """What the shipped presets alone say."""
        found = {name: shipped(value) for name, value in self.params.items()}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A whole experiment file."""

    file: Path
    """The file as the user named it."""
    work_group: Value
    """First part of the run folder."""
    user_name: Value
    """Second part."""
    exp_name: Value
    """Third part."""
    workspace: Value
    """Folder that holds all runs."""
    platform: Value
    """Description of the cluster; carried along."""
    modules: Mapping[str, Module]
    """Modules by role, in the order of the file."""

    @property
    def run_folder(self) -> Path:
        """Return the absolute folder `{workspace}/{work_group}/{user_name}/{exp_name}`."""
        workspace = Path(str(self.workspace.value)).expanduser().absolute()
        return workspace / str(self.work_group.value) / str(self.user_name.value) / str(self.exp_name.value)
