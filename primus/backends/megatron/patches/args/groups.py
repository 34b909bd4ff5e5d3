"""Settings of process groups by kind: NCCL's own, from a file, and the priority of their streams.

The file maps kinds of groups to settings, in YAML or JSON: `dp_cp: {max_ctas: 16}`. What it says goes into the container, so
that a run repeats without it.
"""

import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from primus.backends.megatron.params import Params, Problems, Rule, or_list
from primus.core.experiment.document import read_document
from primus.core.experiment.nearest import did_you_mean
from primus.core.experiment.value import Tree, Value
from primus.engine.config import CommunicatorConfig, GroupName
from primus.errors import ConfigError

__all__ = ["RULES", "communicators"]

_FILE, _HIGH = "nccl_communicator_config_path", "high_priority_stream_groups"
_KINDS: tuple[GroupName, ...] = typing.get_args(GroupName)
_NETWORKS = ("IB", "Socket")
_RANGES = {"min_ctas": (1, None), "max_ctas": (1, None), "cga_cluster_size": (0, 8)}
_SETTINGS = (*_RANGES, "net_name", "is_high_priority_stream")


def communicators(p: Params) -> tuple[CommunicatorConfig, ...]:
    """Return the kinds of groups that have settings of their own; those of a file that cannot be read are left out."""
    settings, _ = _of_file(p)
    for name in p[_HIGH] or ():
        settings.setdefault(name, {})["is_high_priority_stream"] = True
    return tuple(CommunicatorConfig(group=name, **settings[name]) for name in _KINDS if name in settings)


def communicator_file_is_understood(p: Params) -> Problems:
    """Every group, setting and value of the file has a meaning."""
    _, problems = _of_file(p)
    for problem in problems:
        yield f"{p.where(_FILE)}: {problem}"


def high_priority_groups_exist(p: Params) -> Problems:
    """Only kinds that a run makes can be named."""
    for name in p[_HIGH] or ():
        if name not in _KINDS:
            yield f"{p.where(_HIGH)}: {name!r} is no kind of group. {did_you_mean(name, _KINDS)}"


RULES: tuple[Rule, ...] = (communicator_file_is_understood, high_priority_groups_exist)


def _of_file(p: Params) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the settings by group, and what is wrong with the file."""
    if p[_FILE] is None:
        return {}, []
    path, problems = p.input_path(p[_FILE]), list[str]()
    try:
        document = read_document(Path(path), path, {}, problems)
    except ConfigError as error:
        return {}, list(error.problems)
    settings: dict[str, dict[str, Any]] = {}
    for name, node in document.children.items():
        if name not in _KINDS:
            problems.append(f"{node.source}: {name!r} is no kind of group. {did_you_mean(name, _KINDS)}")
        elif not isinstance(node, Tree):
            problems.append(f"{node.source}: {name} needs a map of settings, such as {{max_ctas: 16}}")
        else:
            settings[name] = dict(_settings(name, node, problems))
    return settings, problems


def _settings(group: str, node: Tree, problems: list[str]) -> Iterator[tuple[str, Any]]:
    values: dict[str, Any] = {}
    for name, child in node.children.items():
        value = child.value if isinstance(child, Value) else None
        if name not in _SETTINGS:
            problems.append(f"{child.source}: {group} has no setting {name!r}. {did_you_mean(name, _SETTINGS)}")
        elif (meant := _wrong(name, value)) is not None:
            problems.append(f"{child.source}: {name} of {group} is {value!r}: {meant}")
        else:
            values[name] = value
    if values.get("min_ctas", 1) > values.get("max_ctas", values.get("min_ctas", 1)):
        problems.append(f"{node.source}: {group} has min_ctas {values['min_ctas']} above max_ctas {values['max_ctas']}")
    yield from values.items()


def _wrong(name: str, value: Any) -> str | None:
    """Return what would be right, None if the value is."""
    if name == "is_high_priority_stream":
        return None if isinstance(value, bool) else "say true or false"
    if name == "net_name":
        return None if value in _NETWORKS else f"use {or_list(_NETWORKS)}"
    low, high = _RANGES[name]
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and value >= low and (high is None or value <= high):
        return None
    return f"use a whole number from {low}" + (f" to {high}" if high is not None else " on")
