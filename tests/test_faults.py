"""Every test that docs/faults.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tests_of_the_page_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/faults.md").read_text())
    assert len(named) > 30
    missing = [f"{file}::{name}" for file, name in named if f"\ndef {name}(" not in (ROOT / file).read_text()]
    assert missing == []
