"""Rows of section 9.2: profiler, memory history, skipped iterations, CPU-side groups."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "9.2",
    live("profile", "bool", "profiling.profile",
         doc="Master switch of profiling, for a trace with `use_pytorch_profiler`; alone it switches TensorBoard on, no more."),
    live("use_pytorch_profiler", "bool", "profiling.use_pytorch_profiler",
         doc="With `profile`, write a torch.profiler trace of the window to the TensorBoard folder."),
    live("profile_ranks", "list[int]", "profiling.profile_ranks",
         doc="Global ranks that are profiled; an empty list means all."),
    live("profile_step_start", "int", "profiling.profile_step_start", minimum=0,
         doc="First iteration of the profiled window."),
    live("profile_step_end", "int", "profiling.profile_step_end", minimum=0,
         doc="Iteration at which the profiled window ends; it is no longer in it."),
    live("iterations_to_skip", "list[int]?", "train.iterations_to_skip",
         doc="Iterations, counted from 0, whose data is drawn and dropped without a step; the learning rate does not move."),
    pending("result_rejected_tracker_filename", "path?", "The rerun engine is",
         doc="File to which rejected losses and gradients are appended; iterations rejected twice on one rank are "
             "skipped next time."),
    inert("enable_gloo_process_groups", "bool", "objects are gathered over the groups at hand; no second set is made",
         doc="Keep CPU-side groups beside the device's; `torch` checkpoints of the distributed optimizer need them."),
    pending("record_memory_history", "bool", "The record of the device's allocator is",
         doc="Record the device allocator's events and write them at each log interval."),
    pending("memory_snapshot_path", "path", "The record of the device's allocator is",
         doc="File of the allocator's events, in the run folder unless absolute."),
    live("disable_profiler_activity_cpu", "bool", "profiling.with_cpu",
         doc="Leave the CPU's work out of profiler traces."),
    live("torch_profiler_record_shapes", "bool", "profiling.record_shapes",
         doc="Record tensor shapes in profiler traces."),
    live("torch_profiler_with_stack", "bool", "profiling.with_stack",
         doc="Record Python stacks in profiler traces."),
    live("torch_profiler_use_gzip", "bool", "profiling.use_gzip",
         doc="Compress profiler traces."),
)
