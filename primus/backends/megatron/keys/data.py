"""Rows of section 7: sources, splits, sampling, loading."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

_ENCODER = "encoder-decoder models read it; this engine trains decoder-only models"
_RETRIEVAL = "retrieval models read it; this engine trains decoder-only models"
_BERT = "BERT and T5 data read it; this engine trains decoder-only models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "7",
    live("data_path", "str|list[str]?", "dataset.blend", aka=("dataset",),
         doc="Indexed datasets that `split` divides into training, validation and test: prefixes, or weights and "
             "prefixes in turn."),
    live("data_sharding", "bool", "dataset.data_sharding",
         doc="Cyclic loader: each data-parallel rank shuffles a part of its own; false shuffles all samples together. "
             "Ranks never see the same sample either way."),
    live("split", "str?", "dataset.split",
         doc="Shares of training, validation and test, such as `99,1,0`, cut from the documents in order. "
             "Not with data paths per split."),
    live("train_data_path", "str|list[str]?", "dataset.train_blend",
         doc="Training data of its own, written like `data_path`. Needs `split: null`."),
    live("valid_data_path", "str|list[str]?", "dataset.valid_blend",
         doc="Validation data of its own, written like `data_path`."),
    live("test_data_path", "str|list[str]?", "dataset.test_blend",
         doc="Test data of its own, written like `data_path`."),
    live("data_args_path", "path?", "dataset.blend",
         doc="Text file that holds what `data_path` would, for long blends."),
    live("per_split_data_args_path", "path?", "dataset.train_blend, dataset.valid_blend, dataset.test_blend",
         doc="JSON file with the blends of `train`, `valid` and `test`."),
    live("data_cache_path", "path?", "dataset.cache_path",
         doc="Folder for the sample indices. Null: a `cache` folder beside the data."),
    live("mock_data", "bool", "dataset.mock_data",
         doc="Train on made-up documents; data paths are dropped and the tokenizer becomes a NullTokenizer."),
    live("merge_file", "path?", "tokenizer.merge_file",
         doc="Merge list of a byte-pair tokenizer; it has nothing to do with blending."),
    live("seq_length", "int?", "model.seq_length", minimum=1, aka=("max_seq_length", "sequence_length", "max_length"),
         doc="Tokens of a sample; at most `max_position_embeddings`."),
    live("encoder_seq_length", "int?", "model.seq_length", minimum=1,
         doc="Another name of `seq_length`; only one of the two may be set."),
    inert("decoder_seq_length", "int?", _ENCODER,
          doc="Tokens of a sample on the decoder's side."),
    inert("retriever_seq_length", "int", _RETRIEVAL,
          doc="Tokens that the retriever's tower reads."),
    inert("sample_rate", "float", _RETRIEVAL,
          doc="Share of the evidence rows that open-domain question answering keeps."),
    inert("mask_prob", "float", _BERT,
          doc="Probability that a token is masked."),
    inert("short_seq_prob", "float", _BERT,
          doc="Probability of a sample shorter than the sequence."),
    live("num_workers", "int", "dataset.num_workers", minimum=0,
         doc="Processes of each rank that prepare batches; 0 prepares them in the training process."),
    live("reset_position_ids", "bool", "dataset.reset_position_ids",
         doc="Positions start again at 0 after each end-of-document token."),
    live("reset_attention_mask", "bool", "dataset.reset_attention_mask",
         doc="Tokens do not attend to earlier documents of their sample."),
    live("eod_mask_loss", "bool", "dataset.eod_mask_loss",
         doc="No loss for the prediction made from an end-of-document token; predicting that token still counts."),
    live("dataloader_type", "str?", "dataset.dataloader_type", choices=("single", "cyclic", "external"),
         doc="`single` walks the samples in order, `cyclic` shuffles them anew each epoch without end, "
             "`external` takes the dataset as its own loader. Null: `single`."),
    live("mmap_bin_files", "bool", "dataset.mmap_bin_files",
         doc="Map token files into memory; false opens and reads them item by item."),
    live("create_attention_mask_in_dataloader", "bool", "dataset.create_attention_mask_in_dataloader",
         doc="Put the mask of `reset_attention_mask` into each batch. Without that key there is none to put: causal attention "
             "needs no mask."),
    live("num_dataset_builder_threads", "int", "dataset.num_dataset_builder_threads", minimum=1,
         doc="Threads that build the indices of a blend's sources."),
)
