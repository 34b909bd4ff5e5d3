"""Rows of section 8: computing activations again in backward instead of keeping them."""

from primus.backends.megatron.keys.row import pending, retired, section

__all__ = ["ROWS"]

_RECOMPUTE = "Recomputation is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "8",
    pending("recompute_activations", "bool", _RECOMPUTE,
            doc="Short for `recompute_granularity: selective`, which it also overrides."),
    pending("recompute_granularity", "str?", _RECOMPUTE, choices=("full", "selective"),
            doc="`selective` repeats the attention core, `full` whole layers as `recompute_method` says. Null keeps "
                "everything."),
    pending("recompute_method", "str?", _RECOMPUTE, choices=("uniform", "block"),
            doc="Full recomputation of groups of layers (`uniform`) or of the first layers of each stage (`block`)."),
    pending("recompute_num_layers", "int?", _RECOMPUTE, minimum=1,
            doc="Layers of a group under `uniform`, layers per stage under `block`."),
    pending("recompute_layer_ids", "list[int]|str?", _RECOMPUTE,
            doc="Exactly these layers, counted from 0 over the whole model, are recomputed. Needs `full` and no method."),
    pending("distribute_saved_activations", "bool", _RECOMPUTE,
            doc="Each tensor-parallel rank keeps a slice of a recomputed layer's input. Not with sequence parallelism."),
    retired("checkpoint_activations", "bool", "use recompute_granularity, recompute_method and recompute_num_layers",
            doc="Old switch for recomputation."),
    pending("moe_layer_recompute", "bool", _RECOMPUTE,
            doc="Recompute whole expert layers; an older form of selective recomputation of `moe`."),
)
