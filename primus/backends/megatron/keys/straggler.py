"""Rows of section 13.5: finding slow ranks."""

from primus.backends.megatron.keys.row import pending, section

__all__ = ["ROWS"]

_STRAGGLER = "Straggler detection is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.5",
    pending("log_straggler", "bool", _STRAGGLER,
            doc="Time forward and data on each rank and log the slowest and fastest."),
    pending("disable_straggler_on_startup", "bool", _STRAGGLER,
            doc="Start with the timing off until a request on the controller's port toggles it."),
    pending("straggler_ctrlr_port", "int", _STRAGGLER, minimum=1, maximum=65535,
            doc="Port of rank 0 on which a request toggles the timing."),
    pending("straggler_minmax_count", "int", _STRAGGLER,
            doc="Ranks listed at either end of the report."),
)
