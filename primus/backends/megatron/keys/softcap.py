"""Rows of section 10.7: soft caps `c * tanh(z / c)` on logits."""

from primus.backends.megatron.keys.row import live, section

__all__ = ["ROWS"]

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "10.7",
    live("final_logit_softcapping", "float?", "model.final_logit_softcapping",
            doc="Soft cap on the output logits, before the loss and in generation. Null, 0 or negative: none."),
    live("attn_logit_softcapping", "float?", "model.attention.soft_cap",
            doc="Soft cap on scaled attention scores before the mask. Null, 0 or negative: none."),
    live("router_logit_softcapping", "float?", "model.moe.router_logit_softcapping",
            doc="Soft cap on router logits before experts are chosen. Null, 0 or negative: none."),
)
