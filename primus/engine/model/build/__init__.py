"""Parts of the model, chosen from the configuration: each is picked here, once, so that no forward reads a flag.

parts         norms and the rules that fill matrices
ends          embedding, rotary tables, output
attention     self-attention
mla           latent attention
feed_forward  dense and sparse feed-forward halves
mtp           layers that predict tokens further ahead
layer         a whole layer: the halves that it has, or a state-space mixer
"""
