"""`python -m primus.engine.rehearsal CONFIG` rehearses the rank that RANK and WORLD_SIZE name.

The record goes to stdout, everything else to stderr. Leaves with 0 when done, 2 when the input is wrong, 3 when it failed.
"""

import logging
import sys
from pathlib import Path

from primus import log as logs
from primus.engine.config import serialize
from primus.errors import EXIT_DONE, EXIT_RUN, InputError, PrimusError

__all__ = ["main"]

# As a program this module is called __main__, which is no child of the logger that is configured.
log = logging.getLogger("primus.engine.rehearsal")


def main(arguments: list[str]) -> int:
    """Print the record of a rank; return the exit code."""
    logs.configure(console_level="WARNING")
    try:
        if len(arguments) != 1:
            raise InputError("usage: python -m primus.engine.rehearsal CONFIG, the config.yaml of a run folder")
        config = serialize.load(Path(arguments[0]))
        from primus.engine.rehearsal.record import to_json
        from primus.engine.rehearsal.rehearse import rehearse

        sys.stdout.write(to_json(rehearse(config)) + "\n")
    except PrimusError as error:
        log.error("error: %s", error)
        return error.exit_code
    except Exception:
        log.exception("the rehearsal failed")
        return EXIT_RUN
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
