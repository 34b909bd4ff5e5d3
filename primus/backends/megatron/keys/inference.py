"""Rows of section 13.6: generation, key-value memory, device graphs."""

from primus.backends.megatron.keys.row import inert, pending, section

__all__ = ["ROWS"]

_GENERATION = "Serving of requests is"
_GRAPHS = "Device graphs are"
_BERT = "only BERT embeddings for retrieval read it; this engine trains decoder-only models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "13.6",
    pending("inference_batch_times_seqlen_threshold", "int", _GENERATION, minimum=-1,
            doc="Pipelined generation: split a batch whose size x length exceeds it; -1 never splits."),
    pending("inference_dynamic_batching", "bool", _GENERATION,
            doc="Let requests join and leave the running batch, with key-value memory in blocks."),
    pending("inference_dynamic_batching_buffer_size_gb", "float", _GENERATION, minimum=0,
            doc="Memory of the key-value blocks on each rank in GiB."),
    pending("inference_dynamic_batching_buffer_guaranteed_fraction", "float", _GENERATION, minimum=0, maximum=1,
            doc="Share of the key-value blocks that is kept for requests already running."),
    pending("inference_dynamic_batching_buffer_overflow_factor", "float?", _GENERATION, minimum=0,
            doc="Admit so many times the requests that would surely fit."),
    pending("inference_dynamic_batching_max_requests_override", "int?", _GENERATION, minimum=1,
            doc="Fixed limit on requests in the dynamic batch."),
    pending("inference_dynamic_batching_max_tokens_override", "int?", _GENERATION, minimum=1,
            doc="Fixed limit on tokens of one dynamic step."),
    pending("max_tokens_to_oom", "int", _GENERATION, minimum=1,
            doc="Refuse a request whose prompt and answer together are longer."),
    inert("output_bert_embeddings", "bool", _BERT, doc="Let BERT return mean embeddings instead of logits."),
    inert("bert_embedder_type", "str", _BERT, choices=("megatron", "huggingface"), doc="Which BERT embeds RETRO's chunks."),
    pending("flash_decode", "bool", _GENERATION,
            doc="Decode with a fused kernel over the key-value cache."),
    pending("enable_cuda_graph", "bool", _GRAPHS,
            doc="Capture the layers' kernels once and replay them."),
    pending("cuda_graph_warmup_steps", "int", _GRAPHS, minimum=0,
            doc="Ordinary steps before graphs are captured."),
    pending("external_cuda_graph", "bool", _GRAPHS,
            doc="Leave capturing to the kernel library."),
    pending("cuda_graph_scope", "str", _GRAPHS, choices=("full", "attn", "full_iteration"),
            doc="What one graph covers: a layer, its attention, or an iteration."),
    pending("inference_max_requests", "int", _GENERATION, minimum=1,
            doc="Requests that the static engine runs at a time."),
    pending("inference_max_seq_length", "int", _GENERATION, minimum=1,
            doc="Tokens of a request, prompt and answer together."),
)
