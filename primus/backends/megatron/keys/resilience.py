"""Rows of sections 13.7 to 13.9: hung ranks, restarts, uneven layers, checking results by running again."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

_MONITOR = "Monitoring of hung ranks is"
_LAYERS = "model.blocks.mixing, model.blocks.feed_forward, model.blocks.ffn_hidden_size"
_RERUN = "Running a step again to check it is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
_FAULTS = section(
    "13.7",
    pending("enable_ft_package", "bool", _MONITOR,
            doc="Watch the phases of every rank and restart the job when one exceeds its time limit."),
    pending("calc_ft_timeouts", "bool", _MONITOR,
            doc="Learn the time limits of `enable_ft_package` from the phases seen so far."),
    pending("run_workload_inspector_server", "bool", "The inspector is",
            doc="Serve status, stacks and on-demand profiles of each rank over HTTP."),
)

_STRUCTURE = section(
    "13.8",
    live("heterogeneous_layers_config_path", "path?", _LAYERS,
         doc="JSON file that describes attention and feed-forward of each layer separately."),
    live("heterogeneous_layers_config_encoded_json", "str?", _LAYERS,
         doc="The same JSON as text, plain or in base64; wins over the path."),
    pending("inprocess_restart", "bool", "Restarting inside the process is",
            doc="After a fault on any rank build the process groups anew and continue from the last checkpoint in the "
                "same processes."),
)

_RERUNS = section(
    "13.9",
    inert("enable_experimental", "bool", "no function of this engine is marked experimental",
          doc="Unlock functions that Megatron marks as experimental."),
    pending("error_injection_rate", "int", "The rerun engine is", minimum=0,
         doc="Inject, for a test, an error into one of this many checks of loss and gradients. 0: never."),
    pending("error_injection_type", "str", _RERUN, choices=("correct_result", "transient_error", "persistent_error"),
            doc="What kind of fault an injected error pretends to be."),
    pending("rerun_mode", "str", _RERUN, choices=("disabled", "validate_results", "report_stats", "report_determinism_stats"),
            doc="Run a step again when a result is rejected, to tell faulty hardware from a wrong program, or run all twice."),
)

ROWS = _FAULTS + _STRUCTURE + _RERUNS
