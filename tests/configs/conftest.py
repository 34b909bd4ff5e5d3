"""Presets as plain dicts: `read_preset` one file, `resolve_preset` with everything it extends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import primus

PRESETS = Path(primus.__file__).parent / "configs"


def _read(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return data


def _resolve(file: Path) -> dict[str, Any]:
    own = _read(file)
    merged: dict[str, Any] = {}
    for base in own.pop("extends", []):
        merged |= _resolve(file.parent / base)
    return merged | own


@pytest.fixture
def read_preset() -> Callable[[str], dict[str, Any]]:
    return lambda name: _read(PRESETS / name)


@pytest.fixture
def resolve_preset() -> Callable[[str], dict[str, Any]]:
    return lambda name: _resolve(PRESETS / name)
