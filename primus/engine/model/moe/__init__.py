"""Sparse feed-forward layers.

router   which experts a token goes to, with which weights, and the losses that even out the load
experts  the feed-forward parts of a rank's experts
shared   the expert of all tokens, gated
layer    tokens to their experts and back, beside the shared expert
"""
