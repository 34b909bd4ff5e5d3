"""State-space layers and their kin: a state of fixed size runs along the sequence.

conv    depthwise causal convolution
scan    the selective scan, in chunks
mixer   the Mamba-2 mixer around both
layer   norm, mixer, add
delta_rule   the gated delta rule, in chunks
delta   the gated delta net around it, in place of attention
short   the short convolution of LFM2, in place of attention
"""
