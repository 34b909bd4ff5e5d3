"""Rows of sections 11.1 and 11.2: the build switch, Primus-Turbo kernels and sink attention."""

from primus.backends.megatron.keys.row import inert, live, pending, removed, section

__all__ = ["ROWS"]

_TURBO = "The Turbo kernels are"
_TRANSPORT = "tokens travel by torch's all-to-all, which chooses its own units and stream"
_SINK = "Sink attention is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
_BUILD = section(
    "11.1",
    inert("disable_compile_dependencies", "bool", "no native extension is compiled when a run starts",
          doc="Do not build native extensions at start."),
)

_KERNELS = section(
    "11.2",
    live("enable_primus_turbo", "bool", "model.fusion.attention, model.fusion.rms_norm, model.fusion.weighted_activation, "
         "model.fusion.grouped_gemm, model.moe.token_dispatcher",
            doc="Master switch: without it no key here asks for a kernel. Kernels are written in Triton and run on a GPU; "
                "elsewhere the portable form of the same function runs, and the log says so."),
    live("use_turbo_attention", "bool", "model.fusion.attention",
         doc="Causal attention by a kernel, forward and backward, in 16 bits; layers with sinks, windows, caps or "
             "dropout, which is never left out, keep the form that has them."),
    live("use_sink_attention", "bool", "model.attention.sinks",
            doc="Each head learns a sink that takes up attention without giving a value, as in GPT-OSS."),
    live("sink_sliding_window", "int", "model.attention.window", minimum=0,
            doc="Keys that a token sees in a sink layer, itself included. 0: all."),
    live("sink_window_even_layers_only", "bool", "model.attention.full_layers",
            doc="Apply the window to layers 0, 2, 4 and so on; the others see everything."),
    inert("use_turbo_gemm", "bool", "products of dense layers always go through the device's own matrix library",
          doc="Turbo's matrix products in dense linear layers."),
    removed("use_turbo_parallel_linear", "use_turbo_gemm",
            doc="Former name of `use_turbo_gemm`."),
    live("use_turbo_grouped_gemm", "bool", "model.fusion.grouped_gemm",
            doc="Multiply all experts of a rank in one launch, forward and backward, but for weight gradients."),
    removed("use_turbo_grouped_mlp", "use_turbo_grouped_gemm",
            doc="Former name of `use_turbo_grouped_gemm`."),
    inert("moe_use_fused_router_with_aux_score", "bool", "losses of the load take the router's choice wherever it is theirs",
          doc="Choose experts and compute the balancing scores in one kernel."),
    pending("enable_turbo_attention_float8", "bool", _TURBO,
            doc="Run Turbo's attention in 8 bits. Needs `use_turbo_attention`."),
    live("use_turbo_deepep", "bool", "model.moe.token_dispatcher",
         doc="Dispatch tokens to experts as DeepEP does, once to each rank: chooses the flex dispatcher."),
    inert("turbo_deepep_num_cu", "int", _TRANSPORT,
          doc="Compute units that the DeepEP transport may use."),
    inert("turbo_deepep_use_comm_stream", "bool", _TRANSPORT,
          doc="Give the DeepEP transport a device stream of its own."),
    live("turbo_sync_free_moe_stage", "int", "model.moe.token_dispatcher, model.fusion.weighted_activation",
         choices=(0, 1, 2, 3),
         doc="A bundle of switches: 2 turns `use_turbo_deepep` on, 3 `use_turbo_fused_act_with_probs` too, 1 nothing. The host "
             "still reads how many rows an expert gets."),
    live("use_turbo_fused_act_with_probs", "bool", "model.fusion.weighted_activation",
            doc="Gated activation and routing weight of experts in one pass, forward and backward."),
    live("use_turbo_rms_norm", "bool", "model.fusion.rms_norm",
            doc="RMSNorm by a kernel of one pass; gains stored minus one (`apply_layernorm_1p`) count as such."),
)

ROWS = _BUILD + _KERNELS
