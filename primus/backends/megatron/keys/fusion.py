"""Rows of sections 10.3 and 10.4: initialisation, attention numerics, fused forms."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

_FUSED = "performance hint; the engine always takes its fastest form, and the results are equal"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
_NUMERICS = section(
    "10.3",
    live("init_method_std", "float", "model.init.method_std", minimum=0,
         doc="Standard deviation of fresh weights; projections back into the residual stream use it / sqrt(2 x layers)."),
    live("apply_query_key_layer_scaling", "bool", "model.attention.query_key_layer_scaling",
         doc="Divide attention scores by the layer's number and multiply back in fp32, which keeps them in float16's range."),
    live("attention_softmax_in_fp32", "bool", "model.attention.softmax_in_fp32",
         doc="Explicit attention of a 16-bit model: take the softmax in fp32. Fused attention always does."),
)

_FUSIONS = section(
    "10.4",
    live("bias_gelu_fusion", "bool", "model.activation",
         doc="Use the tanh form of GELU, which the fused kernel of bias and GELU computes. Acts on models with biases."),
    live("cross_entropy_loss_fusion", "bool", "model.fusion.cross_entropy",
         doc="Compute output projection and cross entropy in chunks, without ever holding all logits."),
    inert("cross_entropy_fusion_impl", "str", "there is one fused cross entropy here, with equal results under both names",
          choices=("native", "te"),
          doc="Library of the fused cross entropy."),
    inert("bias_swiglu_fusion", "bool", _FUSED,
         doc="Bias, silu and gate in one pass."),
    inert("masked_softmax_fusion", "bool", _FUSED,
         doc="Explicit attention: scale, mask and softmax in one pass."),
    inert("no_persist_layer_norm", "bool", "kernel choice of a norm library; the one here gives equal results",
          doc="Avoid the norm kernel that keeps a row in registers."),
    inert("bias_dropout_fusion", "bool", _FUSED,
         doc="Bias, dropout and residual addition in one pass."),
    inert("apply_rope_fusion", "bool", _FUSED,
         doc="Rotary embedding in one pass."),
)

ROWS = _NUMERICS + _FUSIONS
