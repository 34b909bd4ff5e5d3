"""Triton forms of operations, beside the portable ones that `kernels.pick` chooses them over.

Import a file here only where its form is to run: Triton is optional, and takes a second to start. All forms run in Triton's
interpreter too (TRITON_INTERPRET=1), in float64 as well, which is how they are held to the portable ones without a GPU.

norm        RMSNorm
activation  a gated activation times a routing weight
grouped     products of many experts
attention   causal attention
"""
