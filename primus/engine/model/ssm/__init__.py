"""State-space layers and their kin: a state of fixed size runs along the sequence.

conv    depthwise causal convolution
scan    the selective scan, in chunks
mixer   the Mamba-2 mixer around both
layer   norm, mixer, add
short   the short convolution of LFM2, in place of attention
"""
