"""`python -m primus.engine.worker CONFIG` turns a container file into the task it describes; one process a rank.

RANK, WORLD_SIZE, LOCAL_RANK and MASTER_* come from the launcher's environment; without them the process is alone. Leaves with
0 when done, 2 when the input is wrong, 3 when the run failed, 130 after Ctrl-C.
"""

import logging
import os
import signal
import time
import traceback
from pathlib import Path

from primus import log as logs
from primus.engine.cause import leave_cause
from primus.engine.config import ConfigContainer, serialize
from primus.engine.host_memory import keep_freed_memory
from primus.engine.leave import run_program
from primus.engine.lifeline import end_with_launcher
from primus.engine.signals import signals_held
from primus.errors import EXIT_DONE, EXIT_RUN, InputError, PrimusError
from primus.run_config import put_back_config
from primus.run_lock import occupy

__all__ = ["main"]

# As a program this module is called __main__, which is no child of the logger that writes the rank's log.
log = logging.getLogger("primus.engine.worker")


def main(arguments: list[str]) -> int:
    """Run the container file named by the only argument and return the exit code."""
    started = time.time()
    rank = int(os.environ.get("RANK", "0"))
    config: ConfigContainer | None = None
    end_with_launcher()
    keep_freed_memory()
    try:
        config = _container(arguments)
        if rank == 0:
            occupy(Path(config.run.folder))
        _configure_logging(config, rank)
        with signals_held(signal.SIGINT):
            from primus.engine.train.pretrain import pretrain

        pretrain(config, process_start=started)
    except PrimusError as error:
        if config is not None and rank == 0 and isinstance(error, InputError):
            put_back_config(Path(config.run.folder))
        return _end(rank, config, str(error), error.exit_code, error)
    except KeyboardInterrupt as error:
        message = "interrupted; exit_signal_handler: true lets a run save before it ends"
        return _end(rank, config, message, 128 + signal.SIGINT, error)
    except Exception as error:  # the last place where it can become an exit code and a cause
        if config is not None and _is_out_of_memory(error):
            log.debug("memory ran out", exc_info=error, extra=logs.FILE_ONLY)
            return _end(rank, config, _out_of_memory(config, error), EXIT_RUN, error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"the run failed: {type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return _end(rank, config, message, EXIT_RUN, error, with_traceback=True)
    return EXIT_DONE


def _container(arguments: list[str]) -> ConfigContainer:
    if len(arguments) != 1:
        raise InputError("usage: python -m primus.engine.worker CONFIG, the config.yaml of a run folder")
    return serialize.load(Path(arguments[0]))


def _is_out_of_memory(error: Exception) -> bool:
    """Tell whether an allocator failed: Python's, torch's of a device, or torch's of the host, which has no type of its own."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _out_of_memory(config: ConfigContainer, error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return (
        f"memory ran out: {first_line or type(error).__name__}. What takes it: micro_batch_size "
        f"{config.train.micro_batch_size}, seq_length {config.model.seq_length}, hidden_size {config.model.hidden_size}, "
        f"num_layers {config.model.num_layers}; smaller ones, recompute_granularity: full, or more ranks need less. "
        "--dry-run shows the plan of memory"
    )


def _end(
    rank: int,
    config: ConfigContainer | None,
    message: str,
    code: int,
    error: BaseException,
    *,
    with_traceback: bool = False,
) -> int:
    """Say why this rank ends and return its exit code.

    A failed rank takes its peers along. If a launcher collects causes, it shows the first, and this rank tells its log file.
    """
    is_told = leave_cause(message, exit_code=code, log=_log_file(config, rank) if config else None, error=error)
    log.log(logging.DEBUG if is_told else logging.ERROR, "%s", message, exc_info=error if with_traceback else None)
    return code


def _log_file(config: ConfigContainer, rank: int) -> Path:
    return Path(config.run.folder) / "logs" / f"rank-{rank}.log"


def _configure_logging(config: ConfigContainer, rank: int) -> None:
    """Every rank has its file; only rank 0 tells its progress on the console, the others their errors."""
    console = config.logger.stderr_sink_level if rank == 0 else "ERROR"
    prefix = "" if rank == 0 else f"[rank {rank}] "
    file = _log_file(config, rank)
    logs.configure(console_level=console, file_level=config.logger.file_sink_level, file=file, prefix=prefix)


if __name__ == "__main__":
    run_program(main)
