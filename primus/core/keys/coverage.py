"""How much of the key surface acts: counts by status, and the status of every key."""

from collections.abc import Mapping
from typing import Any

from primus.core.keys.key import Key

__all__ = ["coverage"]


def coverage(keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return `{"live": n, "pending": n, "inert": n, "keys": {KEY: {"status": ..., "reason": ...}}}`."""
    rows = {name: {"status": _public_status(key), "reason": key.reason} for name, key in keys.items()}
    counts = {status: sum(row["status"] == status for row in rows.values()) for status in ("live", "pending", "inert")}
    return {**counts, "keys": rows}


def _public_status(key: Key) -> str:
    """Return live, pending or inert. A removed key is live: its documented effect is to stop the run with its message."""
    return "live" if key.status == "removed" else key.status
