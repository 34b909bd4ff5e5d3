"""The key row and its readers. The rows themselves stand with their front door, the defaults in the presets.

- `key.py`: `Key`, one row
- `types.py`: the type language of rows and its conversions
- `check.py`: parameters against rows: unknown keys, types, choices, ranges, status
- `coverage.py`: counts by status
- `page.py`: the Markdown reference
"""

from primus.core.keys.check import check_params, check_values, show_value, unknown_key_hint
from primus.core.keys.coverage import coverage
from primus.core.keys.key import Key
from primus.core.keys.page import key_page
from primus.core.keys.types import NotOfType, parse_type

__all__ = [
    "Key",
    "NotOfType",
    "check_params",
    "check_values",
    "coverage",
    "key_page",
    "parse_type",
    "show_value",
    "unknown_key_hint",
]
