"""Rows of section 13.4: biencoders, inverse cloze task and retriever tools."""

from primus.backends.megatron.keys.row import inert, section

__all__ = ["ROWS"]

_RETRIEVER = "only biencoder and retriever tools read it; this engine trains decoder-only models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.4",
    inert("ict_head_size", "int?", _RETRIEVER, doc="Width of the block embedding in the inverse cloze task."),
    inert("biencoder_projection_dim", "int", _RETRIEVER,
          doc="Width of a biencoder's projection; 0 takes the class token as it is."),
    inert("biencoder_shared_query_context_model", "bool", _RETRIEVER, doc="Encode questions and passages with one tower."),
    inert("ict_load", "path?", _RETRIEVER, doc="Checkpoint of a biencoder."),
    inert("bert_load", "path?", _RETRIEVER, doc="BERT checkpoint that a biencoder's towers start from."),
    inert("titles_data_path", "path?", _RETRIEVER, doc="Indexed dataset of document titles."),
    inert("query_in_block_prob", "float", _RETRIEVER, doc="Probability that the question's sentence stays in its passage."),
    inert("use_one_sent_docs", "bool", _RETRIEVER, doc="Admit documents of a single sentence."),
    inert("evidence_data_path", "path?", _RETRIEVER, doc="Table of the passages that answers are looked up in."),
    inert("retriever_report_topk_accuracies", "list[int]", _RETRIEVER,
          doc="Values of k for which the retriever's accuracy is logged."),
    inert("retriever_score_scaling", "bool", _RETRIEVER, doc="Divide retrieval scores by the square root of the hidden size."),
    inert("block_data_path", "path?", _RETRIEVER, doc="File of passage metadata."),
    inert("embedding_path", "path?", _RETRIEVER, doc="File of passage embeddings."),
    inert("indexer_batch_size", "int", _RETRIEVER, doc="Passages that the indexer embeds at a time on each rank."),
    inert("indexer_log_interval", "int", _RETRIEVER, doc="Batches between the indexer's progress lines."),
)
