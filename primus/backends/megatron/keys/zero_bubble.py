"""Rows of section 11.3: the zero-bubble pipeline runtime."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "11.3",
    live("patch_zero_bubble", "bool", "model.pipeline.algorithm",
            doc="Choose the schedule by the keys of this section. Excludes `patch_primus_pipeline`."),
    live("debug_scheduler_table", "bool", "model.pipeline.debug_scheduler_table",
            doc="Print the schedule's table once, a line for each stage."),
    inert("enable_zb_runtime", "bool", "one runtime runs every schedule; patch_zero_bubble decides, upstream too",
            doc="Run the schedules of this section in one runtime; `patch_zero_bubble` decides alone."),
    live("pre_communication_optimization", "bool", "model.pipeline.pre_communication",
            doc="Send one element ahead of each transfer to wake the link. Needs `overlap_p2p_comm`, or `async_p2p` as "
                "`communication_method` where that counts."),
    live("zero_bubble_pipeline_timers_start_iter", "int", "model.pipeline.timed_steps", minimum=0,
            doc="First iteration in which the automatic scheduler times forward, backward and weight gradient."),
    live("zero_bubble_pipeline_timers_end_iter", "int", "model.pipeline.timed_steps", minimum=0,
            doc="Last timed iteration; the schedule made from the timings takes over after it."),
    live("zero_bubble_max_pending_backward", "int|str", "model.pipeline.max_pending_backward",
            doc="Activations that a stage may hold, in microbatches: the number of stages gives ZB1P, twice that ZB2P, "
                "`auto` what memory allows."),
    live("zero_bubble_adaptive_memory_limit_percentile", "int", "model.pipeline.memory_percentile", minimum=1, maximum=100,
            doc="Percentage of device memory that the automatic limit may fill."),
    live("enable_optimizer_post_validation", "bool", "optimizer.post_validation",
            doc="Stages update before the gradient norm over all of them is known, and take back what it clips or skips while "
                "the next iteration begins. Needs `patch_zero_bubble` with a schedule without bubbles. In any precision."),
    live("enable_exactly_numeric_match", "bool", "optimizer.exact_rollback",
            doc="Take back by a copy of weights and optimizer state, bit for bit. False saves its memory and undoes the "
                "arithmetic instead, to rounding."),
    live("enable_zero_bubble", "bool", "model.pipeline.algorithm",
            doc="Split weight gradients from the backward pass; acts under `patch_zero_bubble` only. False runs "
                "1F1B, or groups of `interleave_group_size` where a stage has several chunks."),
    live("zero_bubble_v_schedule", "bool", "model.pipeline.algorithm, model.pipeline.num_chunks",
            doc="Fold the model into a V, two chunks a stage, so that first and last layer share a stage."),
    live("zero_bubble_v_schedule_mem_setup", "str", "model.pipeline.algorithm", choices=("half", "min", "zb"),
            doc="Memory of the V schedule: half or a third of 1F1B's at some bubble, or the same without a bubble."),
    live("enable_1f1b_v", "bool", "model.pipeline.algorithm, model.pipeline.num_chunks",
            doc="The V fold with whole backward passes. Needs `enable_zero_bubble: false`."),
    live("allow_padding_num_layers", "bool", "model.pipeline.layers_per_stage",
            doc="Fill the last stages with layers that do nothing when the depth does not divide evenly."),
    live("profile_memory_iter", "int", "profiling.memory_iteration", minimum=-1,
            doc="Log every rank's memory after each iteration, and record the allocations of this one, counted from 1, in "
                "`mem-profile-rank<rank>` in the run folder: a snapshot of a GPU's allocator, a trace on a CPU. 0 records "
                "none, -1 does neither. It needs no other key."),
    live("interleave_group_size", "int", "model.pipeline.interleave_group_size", minimum=0,
            doc="Without zero bubbles, with several chunks a stage: microbatches that move through them together. 0, and at "
                "most: one per stage."),
    live("offload_chunk_num", "int", "model.pipeline.offload.num_chunks", minimum=0,
            doc="First model chunks of each stage whose activations may go to the host under `cpu_offload`; 1 at least there."),
    live("offload_time", "float", "model.pipeline.offload.time", minimum=0,
            doc="Time of one copy to the host, or back, as a share of a chunk's forward and gradients: the schedule gives each "
                "copy a slot of that length. Needs `auto_offload_time: false`."),
    live("auto_offload_time", "bool", "model.pipeline.offload.time",
            doc="Estimate `offload_time` from the model's width and the device's speed and link to the host."),
    live("offload_overlap_sr", "bool", "model.pipeline.offload.overlaps",
            doc="Copies to and from the host may run at the same time; false: a rank copies one way at a time."),
    live("num_seq_splits", "int", "model.pipeline.num_slices", minimum=1,
            doc="Slices of each sequence that travel through the pipeline one after the other: 1F1B with so many times smaller "
                "bubble and activations. Needs `patch_zero_bubble` and goes before the other keys that choose a schedule."),
    live("cpu_offload", "bool", "model.pipeline.offload.tensors, model.pipeline.offload.num_chunks",
            doc="Keep the activations of the first chunks in host memory between forward and backward, where the link to the "
                "host is fast enough. Needs the group-interleaved schedule (`interleave_group_size`) over an even number of "
                "stages."),
)
