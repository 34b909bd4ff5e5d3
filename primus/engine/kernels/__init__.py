"""Operations, one a file: the reference form and the fused forms, equal within rounding. Import from the files.

norm             RMSNorm, LayerNorm, L2Norm
rope             rotary frequencies, tables, rotation
activation       feed-forward non-linearities
attention        core attention: scaled_dot_product_attention, and the formula
block_attention  attention to some of the keys, whose parts add up
position_dropout dropout of attention by position, of which any piece can be computed
row_dropout      dropout of rows of experts, the same wherever they travel; split_mix: its numbers
linear           a linear that writes its weight gradient into the flat gradients
dropout_add      bias, dropout and residual addition
pick             the one rule by which an operation gets a form; `triton_forms/` are imported where they run
cross_entropy    cross entropy over a divided vocabulary, from logits or from hidden states in chunks
"""
