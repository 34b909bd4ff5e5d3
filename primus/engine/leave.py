"""`run_program` runs a rank's main function and ends the process with its exit code, without Python's finalisation.

A gloo group has threads of its own, which live as long as anything holds the group, so mostly until the process ends. Such a
thread gives a finished collective's tensors back after whoever waited has gone on, and may need Python for it. If Python is
ending by then, it stops the thread inside a C++ destructor: "terminate called without an active exception", SIGABRT, a failed
rank after a finished run. (Seen in a core file: runLoop > ~AsyncAllgatherWork > decref > take_gil > pthread_exit.)
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

__all__ = ["run_program"]


def run_program(main: Callable[[list[str]], int]) -> NoReturn:
    """Call `main` with the program's arguments and end the process with what it returns; 1 if it lets any exception through.

    All else that comes with an end happens: threads are waited for, exit functions run, outputs and logs are flushed.
    """
    code = 1

    def leave() -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # First in, last out: what `main` registers runs before.
    atexit.register(leave)
    code = main(sys.argv[1:])
    sys.exit(code)
