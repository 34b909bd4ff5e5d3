"""`python -m primus.engine.generate CONFIG` continues a prompt, or answers it, with a checkpoint of a run.

One process; the checkpoint may have any layout. The sample goes to stdout, everything else to stderr.
"""

import argparse
import logging
import signal
import sys
from pathlib import Path

from primus import log as logs
from primus.errors import EXIT_DONE, EXIT_RUN, PrimusError

__all__ = ["main"]

# As a program this module is called __main__, which is no child of the logger that is configured.
log = logging.getLogger("primus.engine.generate")


def main(arguments: list[str]) -> int:
    """Print prompt and continuation, or the answer alone; return the exit code."""
    options = _options(arguments)
    logs.configure(console_level="WARNING")
    try:
        from primus.engine.train.sample import sample_run

        text = sample_run(
            Path(options.config),
            prompt=options.prompt,
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            seed=options.seed,
            chat=options.chat,
            ckpt_step=options.ckpt_step,
        )
    except PrimusError as error:
        log.error("error: %s", error)
        return error.exit_code
    except Exception:
        log.exception("generation failed")
        return EXIT_RUN
    sys.stdout.write(f"{text}\n" if options.chat else f"{options.prompt}{text}\n")
    return EXIT_DONE


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="primus generate")
    parser.add_argument("config", help="container file of the run")
    parser.add_argument("--prompt", default="")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--ckpt-step", type=int)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # Nothing is left to be put in order.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
