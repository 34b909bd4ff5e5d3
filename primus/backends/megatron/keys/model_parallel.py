"""Rows of section 5.2: how a model is divided over ranks."""

from primus.backends.megatron.keys.row import inert, live, retired, section

__all__ = ["ROWS"]

_EXPERT = "Expert parallelism is"
_ENCODER = "encoder-decoder pipelines are gone upstream; this engine trains decoder-only models"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "5.2",
    retired("model_parallel_size", "int?", "use tensor_model_parallel_size",
            doc="Old name of `tensor_model_parallel_size`."),
    live("tensor_model_parallel_size", "int", "model.parallel.tensor_model_parallel_size", minimum=1, aka=("tp", "tp_size"),
         doc="Ranks that share each layer's matrices; it divides the attention heads."),
    inert("encoder_tensor_model_parallel_size", "int", _ENCODER,
          doc="Tensor-parallel ranks of an encoder."),
    live("pipeline_model_parallel_size", "int", "model.parallel.pipeline_model_parallel_size", minimum=1, aka=("pp", "pp_size"),
            doc="Stages into which the layers are divided."),
    live("pipeline_model_parallel_layout", "str|list[any]?", "model.pipeline.layers_per_stage, model.pipeline.num_chunks",
            doc="What each stage holds, as text such as `Et*3|(tt|)*29,m|L` or as a list of lists of names."),
    live("pipeline_model_parallel_comm_backend", "str?", "dist.pipeline_backend", choices=("nccl", "ucc"),
         doc="Library of the transfers between stages; `ucc` asks for a torch built with it. Null: `distributed_backend`. "
             "A run on CPUs uses gloo and says so."),
    inert("encoder_pipeline_model_parallel_size", "int", _ENCODER,
          doc="Pipeline stages of an encoder."),
    inert("pipeline_model_parallel_split_rank", "int?", _ENCODER,
          doc="Stage at which the decoder begins."),
    live("decoder_first_pipeline_num_layers", "int?", "model.pipeline.layers_per_stage", minimum=1,
            doc="Layers of the first stage when it should differ from the others."),
    live("decoder_last_pipeline_num_layers", "int?", "model.pipeline.layers_per_stage", minimum=1,
            doc="Layers of the last stage when it should differ from the others."),
    live("virtual_pipeline_model_parallel_size", "int?", "model.pipeline.num_chunks", minimum=1,
            doc="Model chunks of a stage as a number that is derived; another name of `num_virtual_stages_per_pipeline_rank`."),
    live("num_layers_per_virtual_pipeline_stage", "int?", "model.pipeline.num_chunks", minimum=1,
            doc="Interleaving by size: layers of each model chunk."),
    live("num_virtual_stages_per_pipeline_rank", "int?", "model.pipeline.num_chunks", minimum=1,
            doc="Interleaving by number: model chunks of each stage."),
    live("microbatch_group_size_per_vp_stage", "int?", "model.pipeline.microbatch_group_size", minimum=1,
            doc="Microbatches that an interleaved schedule sends through a chunk before it turns to the next. Null: one "
                "per stage."),
    live("sequence_parallel", "bool", "model.parallel.sequence_parallel",
         doc="Norms and dropouts work on a slice of the sequence on each tensor-parallel rank; off when there is only one."),
    live("context_parallel_size", "int", "model.parallel.context_parallel_size", minimum=1,
            doc="Ranks that share a sequence; twice this number divides `seq_length`."),
    live("cp_comm_type", "str|list[str]", "model.parallel.cp_comm_type",
         choices=("p2p", "a2a", "allgather", "all_gather", "a2a+p2p"),
            doc="How attention reaches keys and values of other ranks: ring, exchange of heads, gathering, or a mix; "
                "a list chooses per layer, a list of one for all."),
    live("hierarchical_context_parallel_sizes", "list[int]?", "model.parallel.hierarchical_context_parallel_sizes",
            doc="Sizes of the exchange and the ring level of `a2a+p2p`; their product is `context_parallel_size`."),
    live("expert_model_parallel_size", "int", "model.parallel.expert_model_parallel_size", minimum=1,
            doc="Ranks that share the experts of a layer, in contiguous blocks."),
    live("expert_tensor_parallel_size", "int?", "model.parallel.expert_tensor_parallel_size", minimum=1,
            doc="Ranks that share one expert's matrices. Null: `tensor_model_parallel_size`."),
    live("high_priority_stream_groups", "list[str]", "dist.communicators",
         doc="Kinds of groups, named as in `nccl_communicator_config_path`, whose NCCL streams get high priority: their "
             "collectives go ahead of compute that waits for the device. A run on CPUs says that it has no effect."),
)
