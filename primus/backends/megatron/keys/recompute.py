"""Rows of section 8: computing activations again in backward instead of keeping them."""

from primus.backends.megatron.keys.row import live, retired, section

__all__ = ["ROWS"]

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "8",
    live("recompute_activations", "bool", "model.recompute.granularity",
         doc="Short for `recompute_granularity: selective`."),
    live("recompute_granularity", "str?", "model.recompute.granularity", choices=("full", "selective"),
         doc="`selective` repeats the attention core, `full` whole layers as `recompute_method` says. Null keeps everything."),
    live("recompute_method", "str?", "model.recompute.method", choices=("uniform", "block"),
         doc="Full recomputation of all layers in groups (`uniform`) or of the first layers of each stage (`block`)."),
    live("recompute_num_layers", "int?", "model.recompute.num_layers", minimum=1,
         doc="Layers of a group under `uniform`, layers per stage under `block`."),
    live("recompute_layer_ids", "list[int]|str?", "model.recompute.layer_ids",
         doc="Exactly these layers, counted from 0 over the whole model, are recomputed; those of `mtp_num_layers` come last. "
             "Needs `full` and no method."),
    live("distribute_saved_activations", "bool", "model.recompute.distribute_saved_activations",
         doc="Each tensor-parallel rank keeps a slice of a recomputed layer's input. Not with sequence parallelism."),
    retired("checkpoint_activations", "bool", "use recompute_granularity, recompute_method and recompute_num_layers",
            doc="Old switch for recomputation."),
    live("moe_layer_recompute", "bool", "model.recompute.experts",
         doc="Repeat the feed-forward half of sparse layers, router and exchange of tokens included; its input alone is kept."),
)
