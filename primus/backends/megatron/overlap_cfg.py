"""The grammar of `tp_comm_overlap_cfg`: a map from products to how communication runs beside them.

    qkv_fprop: {method: ring_exchange}
    proj_fprop: {method: pipeline, num_splits: 4}
    fc1_wgrad: {method: bulk, num_sm: 24, cga_size: 2, set_sm_margin: 0}

It is written as YAML (of which JSON is a part) in a file, or in place of the path. Products are named as in Transformer Engine.
`OverlapError` says what is wrong, in sentences that fit behind the key.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from primus.core.experiment.nearest import did_you_mean
from primus.core.keys import show_value
from primus.engine.config.tp_overlap import Method

__all__ = ["METHODS", "Asked", "OverlapError", "parse_overlaps", "read_overlaps"]

METHODS: dict[str, tuple[Method, ...]] = {
    "qkv_fprop": ("ring_exchange",),
    "qkv_dgrad": ("bulk", "pipeline", "ring_exchange"),
    "qkv_wgrad": ("bulk",),
    "proj_fprop": ("pipeline", "ring_exchange"),
    "proj_dgrad": ("ring_exchange",),
    "fc1_fprop": ("ring_exchange",),
    "fc1_dgrad": ("bulk", "pipeline", "ring_exchange"),
    "fc1_wgrad": ("bulk",),
    "fc2_fprop": ("pipeline", "ring_exchange"),
    "fc2_dgrad": ("ring_exchange",),
}
"""Products that have communication beside them, and its forms; the first one is taken where nothing is said."""
_ALONE = ("proj_wgrad", "fc2_wgrad")


class OverlapError(ValueError):
    """The map cannot be used."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Each fault is a sentence that stands on its own."""
        super().__init__("; ".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the map says of one product."""

    method: Method | None = None
    """None: not said."""
    num_splits: int | None = None
    """Pieces of `pipeline`; None: not said."""
    of_kernels: tuple[str, ...] = field(default=())
    """Fields that size the kernels of Transformer Engine's user buffers."""


def read_overlaps(path: str) -> dict[str, Asked]:
    """Return what a file says of each product that it names."""
    try:
        found = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise OverlapError([f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."]) from error
    except yaml.YAMLError as error:
        raise OverlapError([f"{path} is not YAML: {' '.join(str(error).split())}."]) from error
    return parse_overlaps(found)


def parse_overlaps(found: Any) -> dict[str, Asked]:
    """Return what a map says of each product that it names; OverlapError lists all that is wrong."""
    if not isinstance(found, Mapping):
        raise OverlapError([f"it must be a map from products to maps, not {show_value(found)}."])
    faults = [fault for name, fields in found.items() for fault in _faults(str(name), fields)]
    if faults:
        raise OverlapError(faults)
    return {
        name: Asked(
            method=cast(Method | None, fields.get("method")),
            num_splits=fields.get("num_splits"),
            of_kernels=tuple(field for field in fields if field in _OF_KERNELS and fields[field]),
        )
        for name, fields in found.items()
    }


def _faults(name: str, fields: Any) -> Iterator[str]:
    if name in _ALONE:
        yield f"{name} has no communication of its own to run beside: leave it out."
    elif name not in METHODS:
        yield f"{name} is no product. {did_you_mean(name, list(METHODS))}"
    elif not isinstance(fields, Mapping):
        yield f"{name} must be a map with method and num_splits, not {show_value(fields)}."
    else:
        yield from _field_faults(name, fields)


def _field_faults(name: str, fields: Mapping[Any, Any]) -> Iterator[str]:
    for field_name, value in fields.items():
        if field_name not in _FIELDS:
            yield f"{name}: {field_name} is no field. {did_you_mean(str(field_name), list(_FIELDS))}"
        elif not _FIELDS[field_name][0](value):
            yield f"{name}: {field_name} {show_value(value)} must be {_FIELDS[field_name][1]}."
    method = fields.get("method", METHODS[name][0])
    if method not in METHODS[name]:
        yield f"{name}: method {show_value(method)} must be {' or '.join(METHODS[name])}."
    elif "num_splits" in fields and method != "pipeline":
        counts = {"ring_exchange": "ring_exchange has a piece for each rank", "bulk": "bulk is one piece"}
        yield f"{name}: num_splits goes with method: pipeline, but {counts[method]}: leave it out."
    if fields.get("aggregate") in (True, 1):
        yield f"{name}: aggregate is not implemented yet: leave it out."


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_switch(value: Any) -> bool:
    return isinstance(value, (bool, int)) and value in (0, 1)


_COUNT, _SWITCH = (_is_count, "an integer of at least 1"), (_is_switch, "true or false (1 or 0)")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "method": (lambda value: isinstance(value, str), "a name"),
    "num_splits": _COUNT,
    "num_sm": _COUNT,
    "cga_size": _COUNT,
    "set_sm_margin": _SWITCH,
    "aggregate": _SWITCH,
}
_OF_KERNELS = ("num_sm", "cga_size", "set_sm_margin")
