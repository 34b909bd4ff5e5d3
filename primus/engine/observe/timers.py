"""`TimerReport` gathers span times over ranks and words them as `timing_log_option` asks."""

import logging
from collections.abc import Mapping
from typing import Literal

from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Group

__all__ = ["TimerReport", "timer_lines"]

log = logging.getLogger(__name__)

Option = Literal["max", "minmax", "all"]


def timer_lines(times_ms: Mapping[str, list[float]], option: Option) -> list[str]:
    """Return the report: a heading, then one line a timer; `times_ms` holds one value a rank.

    Timers that no rank used are left out.
    """
    heading = {"max": "max time", "minmax": "(min, max) time", "all": "times"}[option]
    lines = [f"{heading} across ranks (ms):"]
    for name, values in times_ms.items():
        if max(values) == 0.0:
            continue
        label = f"    {name + ' ':.<48s}: "
        if option == "max":
            lines.append(f"{label}{max(values):.2f}")
        elif option == "minmax":
            lines.append(f"{label}({min(values):.2f}, {max(values):.2f})")
        else:
            lines += [label.rstrip(), *(f"     rank {rank:2d}: {value:.2f}" for rank, value in enumerate(values))]
    return lines


class TimerReport:
    """Reduces span times at each logged iteration; every rank has the same spans, since all run the same code."""

    def __init__(self, group: Group, option: Option, *, level: int) -> None:
        """At `level` 0 the few timers that always run go to the log file alone."""
        self._group, self._option = group, option
        self._log_level = logging.INFO if level > 0 else logging.DEBUG

    def collect(self, seconds: Mapping[str, float], iterations: int) -> dict[str, float]:
        """Log the report and return `timer/NAME` -> largest milliseconds an iteration over ranks."""
        if not seconds:
            return {}
        ranks = all_gather_object(dict(seconds), self._group)
        times = {name: [rank.get(name, 0.0) * 1e3 / iterations for rank in ranks] for name in seconds}
        log.log(self._log_level, "%s", "\n".join(timer_lines(times, self._option)))
        return {f"timer/{name}": max(values) for name, values in times.items()}
