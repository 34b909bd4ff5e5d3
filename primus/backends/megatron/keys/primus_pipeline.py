"""Rows of section 11.4: the Primus pipeline runner and its helpers."""

from primus.backends.megatron.keys.row import live, section

__all__ = ["ROWS"]

_ALGORITHMS = ("1f1b", "1f1b-interleaved", "zero-bubble", "zero-bubble-heuristic", "zbv-formatted", "v-half", "v-min")

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "11.4",
    live("patch_primus_pipeline", "bool", "model.pipeline.algorithm",
            doc="Choose the schedule by `pp_algorithm`. Excludes `patch_zero_bubble`."),
    live("pp_algorithm", "str", "model.pipeline.algorithm", choices=_ALGORITHMS,
            doc="Name of the pipeline schedule; the interleaved one needs several chunks a stage."),
    live("communication_method", "str", "model.pipeline.communication_method", choices=("async_p2p", "batch_p2p"),
            doc="Ask for the next message between stages while the present one is worked on, or each when it is needed. Counts "
                "under `patch_primus_pipeline`; otherwise `overlap_p2p_comm` does."),
    live("offload", "bool", "model.pipeline.offload.tensors, model.pipeline.offload.num_chunks",
            doc="Keep tensors of the first chunk in host memory between forward and backward; `offload_ops` says which. Needs "
                "`patch_primus_pipeline` with zbv-formatted, v-half or v-min."),
    live("offload_ops", "str", "model.pipeline.offload.tensors",
            doc="Which tensors `offload` moves, separated by commas. `attn`: what core attention keeps, and its output; no "
                "other name is supported. Empty: none."),
    live("pp_max_mem", "float|list[float]?", "model.pipeline.max_memory",
            doc="Heuristic schedule: activations a stage may hold, in microbatches, for all stages or each. Null: no limit."),
    live("pp_cost_f", "float|list[float]?", "model.pipeline.cost_forward",
            doc="Heuristic schedule: time of a forward, for all stages or each. Null: 1000."),
    live("pp_cost_b", "float|list[float]?", "model.pipeline.cost_input_grad",
            doc="Heuristic schedule: time of an input gradient, for all stages or each. Null: 1000."),
    live("pp_cost_w", "float|list[float]?", "model.pipeline.cost_weight_grad",
            doc="Heuristic schedule: time of a weight gradient, for all stages or each. Null: 1000."),
    live("pp_warmup", "bool", "model.pipeline.warmup",
            doc="Run every chunk once on made-up input before the first step, without touching the training's state."),
    live("dump_pp_data", "bool", "model.pipeline.dump_times",
            doc="Write start and end of every forward and backward of each stage to JSON files after the run: times, "
                "not tensors."),
)
