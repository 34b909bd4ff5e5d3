"""The decoder: plain modules under Megatron-Core's parameter names. Import from the files; this door loads nothing.

size        parameters as integers, without torch
            `adapter_size`: those of adapters
products    multiplications of a token in a layer
flops       what training costs of them; `adapter_flops` where adapters alone are trained
builder     `build_model`: configuration to model, every part chosen once
gpt         `GPTModel`: embedding, decoder, output
hidden      shape and dtype of what stages pass on
layer       one transformer layer, and the stack of them
attention   self-attention with grouped queries, and its two core forms
mlp         the feed-forward half
embedding   vocabulary table, learned positions
rotary      rotary tables of a run
slices      slices of a sequence that follow one another
output      logits and losses over a divided vocabulary
linears     column- and row-parallel linears
overlap     what of their communication runs beside which product
norms       RMSNorm, LayerNorm, L2Norm as parts
dropout     the residual additions
recompute   parts whose activations are computed again
parameter   how a part declares its parameters
initialise  first values that do not know the layout
"""
