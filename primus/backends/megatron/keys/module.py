"""Rows of section 1: the module and its log sinks."""

from primus.backends.megatron.keys.row import live, section

__all__ = ["ROWS"]

_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "1",
    live("trainable", "bool", "run.task",
         doc="The module takes part in training; `primus train` refuses a module that says false."),
    live("sink_level", "str?", "logger.file_sink_level, logger.stderr_sink_level", choices=_LEVELS,
         doc="One level for files and console alike; when set it overrides both of their own keys."),
    live("file_sink_level", "str", "logger.file_sink_level", choices=_LEVELS,
         doc="Least level that is written to `logs/rank-*.log` in the run folder."),
    live("stderr_sink_level", "str", "logger.stderr_sink_level", choices=_LEVELS,
         doc="Least level that rank 0 shows on the console; the other ranks show errors."),
)
