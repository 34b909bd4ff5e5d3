"""Rows of section 3: dtypes, loss scaling and normalisation, 8- and 4-bit formats."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

_FP8 = "8-bit precision is"
_FP4 = "4-bit precision is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "3",
    live("fp16", "bool", "mixed_precision.params_dtype",
         doc="Weights and compute in float16 with fp32 main weights and a loss scale. Set `bf16: false` with it."),
    live("bf16", "bool", "mixed_precision.params_dtype",
         doc="Weights and compute in bfloat16 with fp32 main weights. With `fp16` false too, everything is fp32."),
    live("grad_reduce_in_bf16", "bool", "mixed_precision.grad_dtype",
         doc="Accumulate and reduce gradients in bfloat16: half the memory and traffic, less exact. "
             "Wins over `accumulate_allreduce_grads_in_fp32`; needs `bf16`."),
    live("calculate_per_token_loss", "bool", "train.calculate_per_token_loss",
         doc="Weigh every unmasked token of the global batch alike. False averages the token means of the microbatches, "
             "so a short microbatch counts as much as a full one."),
    live("loss_scale", "float?", "mixed_precision.loss_scale", minimum=0,
         doc="Constant loss scale. Null or 0: dynamic scaling under `fp16`, none otherwise."),
    live("initial_loss_scale", "float", "mixed_precision.initial_loss_scale", minimum=0,
         doc="First dynamic loss scale of an `fp16` run."),
    live("min_loss_scale", "float", "mixed_precision.min_loss_scale", minimum=0,
         doc="The dynamic loss scale never falls below it."),
    live("loss_scale_window", "int", "mixed_precision.loss_scale_window", minimum=1,
         doc="Steps in a row without overflow after which the dynamic loss scale doubles."),
    live("hysteresis", "int", "mixed_precision.hysteresis", minimum=1,
         doc="Overflows that are tolerated before the dynamic loss scale halves; a clean window restores them."),
    live("accumulate_allreduce_grads_in_fp32", "bool", "mixed_precision.grad_dtype",
         doc="Accumulate and reduce gradients in fp32. Under `bf16` this happens unless `grad_reduce_in_bf16` asks otherwise; "
             "under `fp16` the key decides."),
    live("fp16_lm_cross_entropy", "bool", "mixed_precision.cross_entropy_in_fp16",
         doc="Compute the cross entropy on float16 logits instead of widening them to fp32. Needs `fp16`."),
    pending("fp8", "str?", _FP8, choices=("e4m3", "hybrid"),
            doc="8-bit format of the linear layers: `e4m3` throughout, or `hybrid` with e5m2 for gradients."),
    pending("fp8_margin", "int", _FP8,
            doc="Delayed recipe: keep the largest value this many powers of two below the format's limit."),
    pending("fp8_recipe", "str", _FP8, choices=("delayed", "tensorwise", "blockwise", "mxfp8", "custom"),
            doc="How 8-bit scales are found: amax history, this tensor's amax, blocks of 128, or blocks of 32."),
    inert("fp8_interval", "int", "scales are renewed at every step; current libraries ignore the interval as well",
          doc="Steps between two renewals of the 8-bit scales."),
    pending("fp8_amax_history_len", "int", _FP8, minimum=1,
            doc="Delayed recipe: number of steps whose largest values are remembered."),
    pending("fp8_amax_compute_algo", "str", _FP8, choices=("max", "most_recent"),
            doc="Delayed recipe: scale by the largest value of the history or by its latest entry."),
    pending("fp8_wgrad", "bool", _FP8,
            doc="Delayed recipe: compute weight gradients in 8 bits; false keeps that product in higher precision."),
    pending("fp8_param_gather", "bool", _FP8,
            doc="Keep the weights in 8 bits, so that gathering updated parameters moves one byte a value."),
    inert("te_rng_tracker", "bool", "every layer draws from one kind of random stream here; no kernel library brings its own",
          doc="Use Transformer Engine's random streams, which can be captured in graphs."),
    pending("inference_rng_tracker", "bool", "A model for generation alone is",
            doc="Replace the random streams by one that does nothing, for generation without dropout."),
    pending("fp4", "str?", _FP4, choices=("e2m1",),
            doc="4-bit format of the linear layers. Excludes `fp8`."),
    pending("fp4_recipe", "str", _FP4, choices=("nvfp4", "mxfp4", "custom"),
            doc="Block scaling of the 4-bit format: 16 values with an e4m3 scale, or 32 with a power of two."),
    pending("fp4_param", "bool", _FP4,
            doc="Keep the weights in 4 bits for gathering. Needs `fp4`."),
    pending("first_last_layers_bf16", "bool", _FP8,
            doc="Leave the first and last layers unquantised; the two counts below say how many."),
    pending("num_layers_at_start_in_bf16", "int", _FP8, minimum=0,
            doc="Layers at the start of the model that stay unquantised under `first_last_layers_bf16`."),
    pending("num_layers_at_end_in_bf16", "int", _FP8, minimum=0,
            doc="Layers at the end of the model that stay unquantised under `first_last_layers_bf16`."),
    pending("no_fp8_weight_transpose_cache", "bool", _FP8,
            doc="Quantise the transposed weight anew in each microbatch instead of keeping it: less memory, same numbers."),
)
