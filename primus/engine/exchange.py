"""`python -m primus.engine.exchange VERB`: weights or adapters from a Hugging Face folder into a checkpoint, or back.

The command line calls it: it gives an empty folder to write into, and takes the folder over if the exit code is 0.
"""

import argparse
import logging
import signal
import sys
from pathlib import Path

from primus import log as logs
from primus.errors import EXIT_DONE, EXIT_RUN, InputError, PrimusError

__all__ = ["main"]

# As a program this module is called __main__, which is no child of the logger that is configured.
log = logging.getLogger("primus.engine.exchange")


def main(arguments: list[str]) -> int:
    """Import or export; return the exit code."""
    options = _options(arguments)
    logs.configure(console_level="WARNING")
    try:
        _move(options)
    except PrimusError as error:
        problems = error.problems if isinstance(error, InputError) else (str(error),)
        for problem in problems:
            log.error("error: %s", problem)
        return error.exit_code
    except OSError as error:
        log.error("error: %s could not be written: %s", error.filename or options.out, error.strerror)
        return EXIT_RUN
    except Exception:
        log.exception("the exchange failed")
        return EXIT_RUN
    return EXIT_DONE


def _move(options: argparse.Namespace) -> None:
    from primus.engine.checkpoint.hf.exchange import export_hf, import_hf
    from primus.engine.checkpoint.hf.peft_export import export_peft
    from primus.engine.checkpoint.hf.peft_import import import_peft

    match options.verb:
        case "import":
            import_hf(options.source, options.out)
        case "export":
            export_hf(options.source, options.out, original=options.original, base=options.base)
        case "import-peft":
            import_peft(options.source, options.base, options.out)
        case "export-peft":
            export_peft(options.source, options.out, original=options.original)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="primus.engine.exchange")
    parser.add_argument("verb", choices=("import", "export", "import-peft", "export-peft"))
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--original", type=Path, default=None)
    parser.add_argument("--base", type=Path, default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # The command line tells of the interruption and clears away what was written.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
