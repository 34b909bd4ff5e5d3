"""Why a rank failed, left for whoever started it: a small JSON file at the path that torch's elastic launchers name.

Several ranks usually fail together, all but one because their peer is gone; the time in the file tells which one was first.
`torchrun` reads the same file and shows its `message`.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Cause", "leave_cause", "noting_time", "read_cause"]

_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_CAUGHT_AT = "primus_caught_at"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """The end of one rank."""

    message: str
    """What the user should read."""
    exit_code: int
    """What the rank left with."""
    log: str | None
    """File with the traceback; None if the rank failed before it had one."""
    time: float
    """Seconds since the epoch."""
    timestamp: int
    """The same in whole seconds, under the name that torchrun expects."""


@contextmanager
def noting_time() -> Iterator[None]:
    """Write on an error when it was caught: what is put in order on its way out takes time, in which the peers fail too."""
    try:
        yield
    except BaseException as error:
        vars(error).setdefault(_CAUGHT_AT, time.time())
        raise


def leave_cause(message: str, *, exit_code: int, log: Path | None, error: BaseException | None = None) -> bool:
    """Write the cause if a launcher asked for one, which then shows it to the user; tell whether it did.

    Its time is that noted on `error`, else now.
    """
    file = os.environ.get(_VARIABLE)
    if file:
        at: float = getattr(error, _CAUGHT_AT, time.time())
        cause = Cause(message=message, exit_code=exit_code, log=str(log) if log else None, time=at, timestamp=int(at))
        Path(file).write_text(json.dumps(asdict(cause)), encoding="utf-8")
    return bool(file)


def read_cause(file: Path) -> Cause | None:
    """Return the cause that a rank left; None if it left none, as when it was killed."""
    try:
        return Cause(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
