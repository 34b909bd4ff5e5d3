"""State-space layers and their kin: a state of fixed size runs along the sequence.

conv    depthwise causal convolution
scan    the selective scan, in chunks
mixer   the Mamba-2 mixer around both
layer   norm, mixer, add
delta_rule   the gated delta rule, in chunks
delta   the gated delta net around it, in place of attention
kimi_rule    the delta rule with a decay for each channel
kimi_delta   Kimi delta attention around it
short   the short convolution of LFM2, in place of attention
"""
