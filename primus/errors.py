"""The errors that reach a user, and the exit code each one ends the process with.

`InputError` is the name to use for everything a user can mend (configuration, data files, checkpoints that are not there);
it ends the command with exit code 2. `RunError` is a run that failed on its way and ends with exit code 3. Several mistakes
are reported together: raise one `InputError` with several problems.
"""

from collections.abc import Iterable

__all__ = ["EXIT_DONE", "EXIT_INPUT", "EXIT_RUN", "ConfigError", "InputError", "PrimusError", "RunError"]

EXIT_DONE = 0
EXIT_INPUT = 2
EXIT_RUN = 3


class PrimusError(Exception):
    """Base of the errors whose text is meant for the user; nothing else is shown without a traceback."""

    exit_code = EXIT_RUN


class InputError(PrimusError):
    """What the user gave cannot be used; each problem is one sentence that says what, where and the way out."""

    exit_code = EXIT_INPUT

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ConfigError(InputError):
    """The configuration is wrong: unknown key, wrong type, values that exclude each other."""


class RunError(PrimusError):
    """The run failed although its input was sound (NaN, a damaged shard, a full disk)."""
