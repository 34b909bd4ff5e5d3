"""Rows of section 13.2: RETRO, a retrieval-augmented model family."""

from primus.backends.megatron.keys.row import inert, section

__all__ = ["ROWS"]

_RETRO = "only RETRO models read it; this engine trains decoder-only models without retrieval"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.2",
    inert("retro_project_dir", "path?", _RETRO, doc="Folder with RETRO's chunk database and neighbours."),
    inert("retro_add_retriever", "bool", _RETRO, doc="Build a decoder that attends to retrieved neighbours."),
    inert("retro_cyclic_train_iters", "int?", _RETRO, doc="Length of a RETRO run with the cyclic loader, in iterations."),
    inert("retro_encoder_layers", "int", _RETRO, doc="Depth of the encoder that reads neighbours."),
    inert("retro_encoder_hidden_dropout", "float", _RETRO, doc="Dropout on the neighbour encoder's hidden states."),
    inert("retro_encoder_attention_dropout", "float", _RETRO, doc="Dropout on the neighbour encoder's attention."),
    inert("retro_num_neighbors", "int", _RETRO, doc="Neighbours retrieved for each chunk of text."),
    inert("retro_num_retrieved_chunks", "int", _RETRO, doc="Chunks of text read from each neighbour: itself and what follows."),
    inert("retro_attention_gate", "float", _RETRO, doc="Factor on the attention to neighbours."),
    inert("retro_verify_neighbor_count", "bool", _RETRO,
          doc="Refuse data whose chunks and stored neighbours do not match in number."),
)
