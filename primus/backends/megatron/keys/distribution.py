"""Rows of section 5.1: process groups, gradient reduction, sharded optimizer and FSDP, pipeline runtime switches."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

_PIPELINE = "Pipeline parallelism is"
_FSDP = "Fully sharded data parallelism is"
_SHARP = "SHARP reduces inside InfiniBand switches through NCCL's own settings; torch's process groups offer no switch for it"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "5.1",
    live("overlap_p2p_comm", "bool", "model.pipeline.communication_method",
            doc="Pipelines of every schedule: ask for the next message between stages while the present one is worked on, so "
                "that it hides behind compute; false: when it is needed. Under `patch_primus_pipeline` `communication_method` "
                "counts."),
    live("distributed_backend", "str", "dist.backend", choices=("nccl", "gloo"),
         doc="Library of the collectives. A run on CPUs always uses gloo and says so."),
    live("distributed_timeout_minutes", "float", "dist.timeout_minutes", above=0, maximum=525_600,
         doc="A collective that takes longer fails the run."),
    live("defer_embedding_wgrad_compute", "bool", "model.pipeline.postpone_output_gradient",
         doc="The last stage computes the output layer's weight gradients when its backwards are through, while other stages "
             "still work. Keeps tokens x vocabulary numbers a microbatch until then."),
    live("wgrad_deferral_limit", "int", "model.pipeline.output_gradient_limit", minimum=0,
         doc="Only so many microbatches of a step defer the output layer's weight gradient; 0 defers all."),
    live("align_grad_reduce", "bool", "ddp.align_grad_reduce",
         doc="Pipelines with `overlap_grad_reduce`: all stages start reducing the gradients of a model chunk when the first "
             "stage has them, instead of each as soon as it can."),
    live("ddp_num_buckets", "int?", "ddp.num_buckets", minimum=1,
         doc="Number of gradient buckets of an overlapped reduction. Excludes `ddp_bucket_size`."),
    live("ddp_bucket_size", "int?", "ddp.bucket_size", minimum=1,
         doc="Elements of a gradient bucket. Null: the larger of 40 million and 1 million x data-parallel ranks."),
    live("ddp_pad_buckets_for_high_nccl_busbw", "bool", "ddp.pad_buckets_for_high_nccl_busbw",
         doc="Pad the buckets of the distributed optimizer to multiples of 65536 elements, which large NCCL rings prefer."),
    live("ddp_average_in_collective", "bool", "ddp.average_in_collective",
         doc="Divide gradients by the number of ranks after their sum instead of before it. Excludes "
             "`calculate_per_token_loss`."),
    live("overlap_grad_reduce", "bool", "ddp.overlap_grad_reduce",
         doc="Reduce each gradient bucket as soon as backward has filled it."),
    live("overlap_param_gather", "bool", "ddp.overlap_param_gather",
         doc="Gather updated parameters bucket by bucket during the next forward. "
             "Needs `use_distributed_optimizer` and `overlap_grad_reduce`."),
    live("overlap_param_gather_with_optimizer_step", "bool", "ddp.overlap_param_gather_with_optimizer_step",
         doc="Pipelines of several chunks a rank: gather the first chunk's parameters while the optimizer still updates the "
             "others. Needs `overlap_param_gather`."),
    live("align_param_gather", "bool", "ddp.align_param_gather",
         doc="Pipelines of more than two chunks a rank with `overlap_param_gather`: all stages start gathering a chunk's "
             "parameters when the first stage begins the chunk before it, instead of right after the update."),
    live("scatter_gather_tensors_in_pipeline", "bool", "model.pipeline.scatter_gather",
            doc="Each tensor-parallel rank sends its share of a stage's output and the receiver gathers; "
                "sequence parallelism does this anyway."),
    inert("use_ring_exchange_p2p", "bool", "it needs a patched build of torch; stages use plain sends and receives",
          doc="Exchange tensors between stages by a fused ring operation."),
    inert("local_rank", "int?", "the launcher hands each process its LOCAL_RANK",
          doc="Index of the process on its node."),
    inert("lazy_mpu_init", "bool?", "process groups are built once, before the model, in every run",
          doc="Leave the set-up of process groups to an outside caller."),
    live("account_for_embedding_in_pipeline_split", "bool", "model.pipeline.layers_per_stage",
            doc="Count the embedding as a layer when layers are divided over stages."),
    live("account_for_loss_in_pipeline_split", "bool", "model.pipeline.layers_per_stage",
            doc="Count output layer and loss as a layer when layers are divided over stages."),
    live("empty_unused_memory_level", "int", "train.empty_unused_memory_level", choices=(0, 1, 2),
         doc="Give freed memory that the allocator caches back before the optimizer step (1) and after it too (2): to the "
             "device, or on a CPU to the system. Costs time."),
    live("standalone_embedding_stage", "bool", "model.pipeline.layers_per_stage",
            doc="The first stage holds the embedding alone."),
    live("use_distributed_optimizer", "bool", "ddp.use_distributed_optimizer",
         doc="Each data-parallel rank keeps and updates one shard of main weights and moments; the numbers stay the same."),
    inert("use_sharp", "bool", _SHARP,
          doc="Reduce inside the network switches."),
    inert("sharp_enabled_group", "str?", _SHARP, choices=("dp", "dp_replica"),
          doc="Process group whose reductions `use_sharp` moves into the network."),
    live("use_custom_fsdp", "bool", "ddp.use_megatron_fsdp",
         doc="Older name of `use_megatron_fsdp`; either is enough."),
    live("use_megatron_fsdp", "bool", "ddp.use_megatron_fsdp",
         doc="Shard over data-parallel ranks what `data_parallel_sharding_strategy` names. "
             "It decides `use_distributed_optimizer`."),
    live("init_model_with_meta_device", "bool", "model.init.meta_device",
         doc="Build the model without memory and fill it unit by unit, so that no rank ever holds it whole. "
             "Needs `use_megatron_fsdp` and a strategy that shards, or `use_torch_fsdp2`."),
    live("data_parallel_sharding_strategy", "str", "ddp.data_parallel_sharding_strategy",
         choices=("no_shard", "optim", "optim_grads", "optim_grads_params"),
         doc="What `use_megatron_fsdp` shards: nothing, optimizer state, gradients as well, or parameters too (ZeRO 0 to 3). "
             "Sharded gradients are reduced layer by layer in every microbatch; sharded parameters of a layer are gathered "
             "while it runs."),
    live("gradient_reduce_div_fusion", "bool", "ddp.gradient_reduce_div_fusion",
         doc="Divide sharded gradients by the number of ranks where they are added up, after the reduction, instead of in a "
             "pass of its own before it."),
    live("suggested_communication_unit_size", "int", "ddp.suggested_communication_unit_size", minimum=1,
         doc="Elements of sharded parameters that are gathered ahead of use where `overlap_param_gather` is on; "
             "larger prefetches more, less than a layer not at all."),
    pending("keep_fp8_transpose_cache_when_using_custom_fsdp", "bool", _FSDP,
            doc="FSDP with 8-bit weights keeps their transposed copies between microbatches."),
    live("num_distributed_optimizer_instances", "int", "model.parallel.num_distributed_optimizer_instances", minimum=1,
         doc="Shard the optimizer inside this many groups of data-parallel ranks and reduce between the groups."),
    live("use_torch_fsdp2", "bool", "ddp.use_torch_fsdp2",
         doc="Torch's `fully_shard` divides parameters, gradients and optimizer state over data-parallel ranks, and gathers a "
             "layer's parameters while it runs. Excludes pipelines, tied embeddings, fp16 and `use_distributed_optimizer`."),
    live("nccl_communicator_config_path", "path?", "dist.communicators",
         doc="YAML or JSON file that gives kinds of groups (`tp`, `cp`, `hcp`, `dp`, `dp_cp`, `intra_dp_cp`, `inter_dp_cp`, "
             "`pp`, `embd`, `mp`) NCCL's `min_ctas`, `max_ctas`, `cga_cluster_size`, `net_name` or `is_high_priority_stream`. "
             "A run on CPUs says that it has no effect."),
    live("use_tp_pp_dp_mapping", "bool", "model.parallel.use_tp_pp_dp_mapping",
         doc="Number ranks so that pipeline stages lie closer together than data-parallel replicas."),
    live("replication", "bool", "checkpoint.non_persistent.replication_jump",
         doc="Keep copies of `local` non-persistent checkpoints on other ranks' nodes. It has nothing to do with schedules."),
    live("replication_jump", "int?", "checkpoint.non_persistent.replication_jump", minimum=1,
         doc="Distance in ranks between those that keep one another's parts: at least the ranks of a node, so that copies lie "
             "on others."),
    live("replication_factor", "int?", "checkpoint.non_persistent.replication_factor", minimum=2,
         doc="Ranks that keep a part, the one that wrote it among them. Null: 2."),
    live("deterministic_mode", "bool", "rng.deterministic_mode",
         doc="Use only algorithms that give the same bits each time. "
             "Excludes `use_flash_attn` and `cross_entropy_loss_fusion`."),
    live("check_weight_hash_across_dp_replicas_interval", "int?", "ddp.check_weight_hash_interval", minimum=1,
         doc="Iterations between comparisons of all replicas' weights by hash; a difference stops the run."),
    live("overlap_moe_expert_parallel_comm", "bool", "model.moe.overlaps_exchange",
         doc="Run the backward of a microbatch and the forward of the next in turns, each while the other's tokens travel to "
             "experts. Two microbatches then keep their activations; alltoall and flex dispatchers, without pipelines."),
    live("decoder_pipeline_manual_split_list", "list[int]?", "model.pipeline.layers_per_stage",
         doc="Decoder layers on each stage, in model order."),
    inert("patch_moe_overlap", "bool", "nothing reads it upstream either; overlap_moe_expert_parallel_comm is the working key",
          doc="Former switch for overlapping expert compute and communication."),
)
