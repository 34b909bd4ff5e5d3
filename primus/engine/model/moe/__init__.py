"""Sparse feed-forward layers.

real        which tokens say something, and of which sequence they are
router      which experts a token goes to, with which weights
microbatch  what is decided over tokens of several ranks
losses      what evens out the load, beside the loss of the tokens
dispatch    how tokens reach the ranks of their experts and come back
experts     the feed-forward parts of a rank's experts
shared      the expert of all tokens, gated
token_numbers  by what experts that drop values know a token
layer       tokens to their experts and back, beside the shared expert
upcycling   what becomes of a dense model's layers
"""
