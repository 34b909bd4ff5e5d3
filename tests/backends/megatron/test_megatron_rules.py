"""Each cross-key rule: what the user wrote, and what the refusal says."""

import json
from pathlib import Path
from typing import Any

import pytest

FILES = {"mock_data": False, "data_path": "a", "split": "99,1,0"}
OWN = {"mock_data": False, "train_data_path": "a", "valid_data_path": "b"}
FSDP2 = {"use_torch_fsdp2": True}
HALF = {"fp16": True}
SAVE = {"save": "ckpt", "save_interval": 4}
LOCAL = {**SAVE, "non_persistent_save_interval": 2, "non_persistent_ckpt_type": "local", "non_persistent_local_ckpt_dir": "n"}

CASES: list[tuple[dict[str, Any], int, str]] = [
    # the loop
    ({"trainable": False}, 1, "trainable false (exp.yaml:"),
    ({"skip_train": True}, 1, "leaves only evaluation, but eval_iters 0 (exp.yaml:"),
    ({"iterations_to_skip": [3, -1]}, 1, "iterations_to_skip [3, -1]"),
    ({"profile": True, "profile_step_start": 5, "profile_step_end": 5}, 1, "profile_step_end 5"),
    (
        {"profile": True, "use_pytorch_profiler": True, "profile_memory_iter": 11},
        1,
        "profile_memory_iter 11 (exp.yaml:",
    ),
    # ranks and batches
    ({"tensor_model_parallel_size": 2}, 3, "the run has 3 processes, no multiple of tensor_model_parallel_size 2"),
    ({"tensor_model_parallel_size": 2}, 3, "start 2 or 4"),
    ({"tensor_model_parallel_size": 4}, 2, "start 4 (--nproc-per-node), or change the degree"),
    ({"global_batch_size": 10, "micro_batch_size": 4}, 2, "global_batch_size 10"),
    ({"global_batch_size": 10, "micro_batch_size": 4}, 2, "micro_batch_size 4"),
    ({"global_batch_size": 10, "micro_batch_size": 4}, 2, "x data-parallel size 2 = 8: use 8 or 16"),
    ({"global_batch_size": 3, "micro_batch_size": 4}, 1, "use 4, or set decrease_batch_size_if_needed: true"),
    ({"global_batch_size": 3, "micro_batch_size": 4, "decrease_batch_size_if_needed": True}, 1, "cannot be rounded down"),
    ({"rampup_batch_size": "2 2"}, 1, "write three numbers: start, increment and samples"),
    ({"rampup_batch_size": "a b c"}, 1, "must be a list of integers"),
    ({"rampup_batch_size": "2 4 12"}, 1, "steps of 4 from 2 never reach 8 exactly; let the increment divide 6"),
    ({"rampup_batch_size": "8 2 12"}, 1, "the start 8 must be smaller than the full batch"),
    ({"rampup_batch_size": "0 2 12"}, 1, "start and increment must be at least 1"),
    (
        {"rampup_batch_size": "2 2 12", "micro_batch_size": 4},
        1,
        "batches of [2, 4, 6, 8], but 2 or 6 is no multiple",
    ),
    # checkpoints in between
    ({"non_persistent_save_interval": 2, **SAVE}, 1, "needs non_persistent_ckpt_type: global or local"),
    ({"non_persistent_save_interval": 2, "non_persistent_ckpt_type": "global"}, 1, "works beside save, but save null"),
    ({"non_persistent_ckpt_type": "in_memory"}, 1, "memory ends with the process; use local with a folder in memory"),
    ({"non_persistent_ckpt_type": "local"}, 1, "needs non_persistent_local_ckpt_dir, a folder on each node's disk"),
    (
        {**SAVE, "non_persistent_ckpt_type": "global", "non_persistent_global_ckpt_dir": "./ckpt"},
        1,
        "non_persistent_global_ckpt_dir ./ckpt (exp.yaml:",
    ),
    ({"replication": True, "replication_jump": 1}, 2, "copies local checkpoints: set non_persistent_ckpt_type: local"),
    ({**LOCAL, "replication": True}, 2, "needs replication_jump, such as the number of ranks on a node"),
    (
        {**LOCAL, "replication": True, "replication_jump": 2},
        2,
        "replication_jump 2 (exp.yaml:",
    ),
    (
        {**LOCAL, "replication": True, "replication_jump": 1, "replication_factor": 4},
        2,
        "times replication_factor 4 must divide the 2 processes of the run: groups of 4 ranks that lie 1 apart",
    ),
    ({**LOCAL, "replication": True, "replication_jump": 1, "replication_factor": 1}, 2, "must be at least 2"),
    # the length of the run
    ({"train_samples": 48}, 1, "train_iters 6 (exp.yaml:"),
    ({"train_samples": 48, "train_iters": None, "lr_warmup_iters": 2}, 1, "lr_warmup_iters 2"),
    ({"train_samples": 48, "train_iters": None, "lr_decay_iters": 2}, 1, "set lr_decay_iters: null and use lr_decay_samples"),
    ({"lr_decay_samples": 4}, 1, "use lr_decay_iters, or set train_samples"),
    ({"lr_warmup_samples": 4}, 1, "use lr_warmup_iters, or set train_samples"),
    ({"train_iters": None}, 1, "neither train_iters (exp.yaml:"),
    ({"train_iters": 0}, 1, "to evaluate without training set skip_train: true"),
    ({"train_iters": None, "train_samples": 5}, 1, "is less than one batch, global_batch_size 8"),
    ({"train_iters": -1}, 1, "train_iters -1 (exp.yaml:"),
    ({"train_iters": None, "train_samples": -8}, 1, "is less than one batch"),
    # bounds
    ({"adam_beta1": 1}, 1, "must be at least 0 and below 1."),
    ({"adam_beta2": 1.0}, 1, "must be at least 0 and below 1."),
    ({"distributed_timeout_minutes": 0}, 1, "must be above 0 and at most 525600."),
    ({"position_embedding_type": "yarn", "rotary_base": 1}, 1, "rotary_base 1.0 (exp.yaml:"),
    ({**FILES, "data_path": "my.bin"}, 1, "leave out the .bin of "),
    ({**FILES, "data_path": [1, "my_data", 2]}, 1, ": 1 stands where a prefix is expected: give every prefix a weight"),
    ({"tensor_model_parallel_size": 3}, 3, "is not divisible by tensor_model_parallel_size 3 (exp.yaml:"),
    ({"tensor_model_parallel_size": 3}, 3, "use 2 or 4 ranks."),
    # schedules
    ({"lr": None}, 1, "lr is null (exp.yaml:"),
    ({"lr": 1e-5}, 1, "min_lr 0.0001 (exp.yaml:"),
    ({"lr": 1e-5}, 1, "is above lr 1e-5 (exp.yaml:"),
    ({"lr": 1e-5}, 1, "set it to at most 1e-05, for example min_lr: 1e-06"),
    ({"decoupled_lr": 1e-5}, 1, "set decoupled_min_lr to at most 1e-05"),
    ({"decoupled_lr": 1e-3, "decoupled_min_lr": 1e-2}, 1, "decoupled_min_lr 0.01"),
    ({"lr_warmup_init": 0.1}, 1, "a warm-up rises; lower lr_warmup_init"),
    ({"lr_warmup_iters": 2, "lr_warmup_fraction": 0.1}, 1, "both set the warm-up"),
    ({"lr_warmup_fraction": 1.0}, 1, "must be below 1"),
    ({"lr_warmup_iters": 6}, 1, "is not shorter than train_iters 6"),
    ({"lr_warmup_iters": 6}, 1, "set lr_warmup_iters to at most 5, for example lr_warmup_iters: 0"),
    ({"lr_warmup_iters": 3, "lr_decay_iters": 3}, 1, "is not shorter than lr_decay_iters 3"),
    ({"lr_decay_style": "WSD"}, 1, "needs lr_wsd_decay_iters, the length of its anneal"),
    ({"lr_decay_style": "WSD", "lr_wsd_decay_iters": 5, "lr_warmup_iters": 2}, 1, "longer than what the warm-up leaves"),
    ({"use_checkpoint_opt_param_scheduler": True}, 1, "contradicts override_opt_param_scheduler true (primus/configs"),
    ({"use_checkpoint_opt_param_scheduler": True}, 1, "pre_trainer.yaml:"),
    ({"start_weight_decay": 0.1}, 1, "has no place in weight_decay_incr_style constant"),
    ({"weight_decay_incr_style": "linear", "start_weight_decay": 0.1}, 1, "set end_weight_decay"),
    ({"weight_decay_incr_style": "linear", "start_weight_decay": 0.1, "end_weight_decay": 0.0}, 1, "0 <= start <= end"),
    # precision
    ({**HALF, "bf16": True}, 1, "exclude each other: set one of them to false"),
    ({"fp16_lm_cross_entropy": True}, 1, "needs fp16: true"),
    ({"fp32_residual_connection": True}, 1, "needs bf16 or fp16"),
    ({**HALF, "min_loss_scale": 4.0, "initial_loss_scale": 2.0}, 1, "not above initial_loss_scale 2.0"),
    ({**HALF, "min_loss_scale": 0.0}, 1, "must lie above 0"),
    # the model
    ({"encoder_num_layers": 3}, 1, "both set the depth"),
    ({"num_layers": None}, 1, "num_layers is null (exp.yaml:"),
    ({"hidden_size": None}, 1, "hidden_size is null"),
    ({"dataloader_type": "external"}, 1, "use single or cyclic"),
    ({"head_lr_mult": 0.5, "untie_embeddings_and_output_weights": False}, 1, "set 1, or untie them"),
    ({"num_attention_heads": 5}, 1, "hidden_size 32"),
    ({"num_attention_heads": 5}, 1, "use 4 or 8 heads, or set kv_channels"),
    ({"group_query_attention": True, "num_query_groups": 3}, 1, "num_attention_heads 4 (exp.yaml:"),
    ({"group_query_attention": True, "num_query_groups": 3}, 1, "num_query_groups 3 (exp.yaml:"),
    ({"group_query_attention": True, "num_query_groups": 3}, 1, "use 2 or 4 query groups"),
    ({"group_query_attention": True, "num_query_groups": 0}, 1, "num_attention_heads 4 (exp.yaml:"),
    ({"group_query_attention": True, "num_query_groups": 0}, 1, "num_query_groups 0 (exp.yaml:"),
    ({"squared_relu": True}, 1, "set swiglu: false"),
    ({"swiglu": False, "squared_relu": True, "quick_geglu": True}, 1, "set quick_geglu: false"),
    # positions
    ({"encoder_seq_length": 32}, 1, "set encoder_seq_length: null"),
    ({"seq_length": None}, 1, "seq_length is null"),
    ({"max_position_embeddings": None}, 1, "max_position_embeddings: 32 will do"),
    ({"seq_length": 64}, 1, "set max_position_embeddings to at least 64, or seq_length to at most 32"),
    (
        {"position_embedding_type": "learned_absolute", "add_position_embedding": False},
        1,
        "choose position_embedding_type rope, yarn or none",
    ),
    ({"rotary_percent": 0.4}, 1, "turns pairs of channels"),
    ({"kv_channels": 7}, 1, "of 7 channels a head is 7"),
    ({"rotary_seq_len_interpolation_factor": 0}, 1, "rotary_seq_len_interpolation_factor 0"),
    ({"position_embedding_type": "yarn", "rotary_interleaved": True}, 1, "rotary_interleaved true"),
    ({"position_embedding_type": "learned_absolute", "use_rope_scaling": True}, 1, "needs position_embedding_type rope"),
    # tensor and data parallelism
    ({"tensor_model_parallel_size": 3, "hidden_size": 36, "num_attention_heads": 4}, 3, "num_attention_heads 4"),
    (
        {"tensor_model_parallel_size": 2, "group_query_attention": True, "num_query_groups": 3, "num_attention_heads": 6}
        | {"hidden_size": 48},
        2,
        "is neither a multiple nor a divisor of tensor_model_parallel_size 2",
    ),
    ({"tensor_model_parallel_size": 2, "ffn_hidden_size": 65}, 2, "ffn_hidden_size 65"),
    (
        {"tensor_model_parallel_size": 2, "seq_length": 31},
        2,
        "set seq_length to 30 or 32, or choose a size that divides it, or set sequence_parallel: false",
    ),
    ({"overlap_param_gather": True}, 1, "needs overlap_grad_reduce: true"),
    ({"overlap_param_gather_with_optimizer_step": True}, 1, "needs overlap_param_gather: true (it is"),
    (
        {
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "overlap_param_gather_with_optimizer_step": True,
            "pipeline_model_parallel_size": 2,
        },
        2,
        "needs several model chunks a rank, of which the first is gathered early",
    ),
    ({"num_distributed_optimizer_instances": 3}, 4, "does not divide the 4 ranks that hold the same parameters"),
    (
        {"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": False},
        4,
        "needs use_distributed_optimizer: true",
    ),
    ({"overlap_param_gather": True, "use_distributed_optimizer": False}, 1, "needs use_distributed_optimizer: true"),
    ({"ddp_num_buckets": 2, "ddp_bucket_size": 100}, 1, "exclude each other: set one to null"),
    ({"ddp_average_in_collective": True, "calculate_per_token_loss": True}, 1, "set ddp_average_in_collective: false"),
    ({"init_model_with_meta_device": True}, 1, "but use_megatron_fsdp false"),
    ({**FSDP2, "use_megatron_fsdp": True}, 2, "each shards in its own way; keep one of them"),
    ({**FSDP2, "use_custom_fsdp": True}, 2, "excludes use_custom_fsdp true (exp.yaml:"),
    ({**FSDP2, "use_distributed_optimizer": True}, 2, "divides the optimizer's state itself; set it to false"),
    ({**FSDP2, "gradient_accumulation_fusion": True}, 2, "takes weight gradients from autograd; set it to false"),
    ({**FSDP2, "fp16": True}, 2, "excludes fp16 true (exp.yaml:"),
    ({**FSDP2, "use_sink_attention": True, "bf16": True}, 2, "in one dtype, and sinks are in fp32; use_megatron_fsdp: true"),
    ({**FSDP2, "pipeline_model_parallel_size": 2}, 2, "needs pipeline_model_parallel_size: 1"),
    ({**FSDP2, "untie_embeddings_and_output_weights": False}, 2, "they cannot share a weight"),
    ({**FSDP2, "check_weight_hash_across_dp_replicas_interval": 2}, 2, "set the first to null, or the second to false"),
    (
        {"init_model_with_meta_device": True, "use_custom_fsdp": True},
        1,
        "but data_parallel_sharding_strategy no_shard",
    ),
    (
        {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": "optim_grads_params",
            "check_weight_hash_across_dp_replicas_interval": 2,
        },
        2,
        "leaves a rank its shard: set the first to null",
    ),
    # data
    ({"mock_data": False}, 1, "there is no data: set data_path"),
    ({**FILES, "data_args_path": "list.txt"}, 1, "different sources of data: keep one of them"),
    ({**FILES, "train_data_path": "b"}, 1, "different sources of data: keep one of them"),
    ({**OWN, "per_split_data_args_path": "lists.json"}, 1, "different sources of data: keep one of them"),
    ({**FILES, "data_path": "0.3 a b c"}, 1, "b stands where a weight is expected"),
    ({"mock_data": False, "data_args_path": "list.txt"}, 1, "list.txt cannot be read: No such file"),
    ({"mock_data": False, "per_split_data_args_path": "lists.json"}, 1, "lists.json cannot be read"),
    ({**FILES, "split": "1,2,3,4"}, 1, "one to three shares"),
    ({**OWN, "split": "99,1,0"}, 1, "set split: null"),
    ({**FILES, "split": "0,1,0"}, 1, "leaves no documents for training"),
    ({"mock_data": False, "valid_data_path": "b"}, 1, "but training draws from it: set it"),
    ({**FILES, "split": "1,0,0", "eval_iters": 2}, 1, "eval_iters 2 (exp.yaml:"),
    ({**FILES, "split": "1,0,0", "full_validation": True}, 1, "full_validation true"),
    ({"mock_data": False, "train_data_path": "a", "eval_iters": 2}, 1, "set valid_data_path, or switch validation off"),
    ({**OWN, "valid_data_path": ["1", "./a"]}, 1, "stands in the training data and in the valid data"),
    ({**OWN, "test_data_path": "a"}, 1, "stands in the training data and in the test data"),
    ({**OWN, "multiple_validation_sets": True}, 1, "needs full_validation: true"),
    ({**FILES, "multiple_validation_sets": True, "full_validation": True}, 1, "needs valid_data_path, a list of prefixes"),
    (
        {**OWN, "valid_data_path": "1 b 2 c", "multiple_validation_sets": True, "full_validation": True},
        1,
        "valid_data_path has weights",
    ),
    ({**FILES, "data_path": "1 b 2 c", "full_validation": True}, 1, "has weights, which repeat samples or leave some out"),
    ({**OWN, "valid_data_path": "1 b 2 c", "full_validation": True}, 1, "valid_data_path (exp.yaml:"),
    (
        {"reset_attention_mask": True, "create_attention_mask_in_dataloader": False},
        1,
        "set create_attention_mask_in_dataloader: true",
    ),
    # tokenizers
    ({**FILES, "tokenizer_type": None}, 1, "tokenizer_type is null (exp.yaml:"),
    ({**FILES, "vocab_size": None}, 1, "tokenizer_type NullTokenizer (exp.yaml:"),
    ({**FILES, "tokenizer_type": "HuggingFaceTokenizer"}, 1, "needs tokenizer_model: set it"),
    ({**FILES, "tokenizer_type": "GPT2BPETokenizer", "vocab_file": "v"}, 1, "needs merge_file: set it"),
    ({**FILES, "tokenizer_type": "TikTokenizer", "tokenizer_model": "t"}, 1, "must be smaller than vocab_size 96"),
    ({**FILES, "tokenizer_type": "HugingFaceTokenizer"}, 1, "HuggingFaceTokenizer"),
    # recomputation
    ({"recompute_method": "block"}, 1, "needs recompute_granularity: full"),
    ({"recompute_granularity": "selective", "recompute_num_layers": 1}, 1, "needs recompute_granularity: full"),
    ({"distribute_saved_activations": True}, 2, "needs recompute_granularity: full"),
    ({"recompute_granularity": "full"}, 1, "needs recompute_method (uniform or block) or recompute_layer_ids"),
    ({"recompute_granularity": "full", "recompute_method": "block"}, 1, "needs recompute_num_layers: the layers of each stage"),
    ({"recompute_granularity": "full", "recompute_layer_ids": [0], "recompute_num_layers": 1}, 1, "needs a recompute_method"),
    (
        {"recompute_granularity": "full", "recompute_layer_ids": [0], "recompute_method": "block", "recompute_num_layers": 1},
        1,
        "exclude each other",
    ),
    ({"recompute_granularity": "full", "recompute_layer_ids": [0, 99]}, 1, "must list layers from 0 to"),
    ({"recompute_granularity": "full", "recompute_layer_ids": "0,one"}, 1, "must list layers from 0 to"),
    ({"recompute_granularity": "full", "recompute_layer_ids": []}, 1, "must list layers from 0 to"),
    ({"recompute_granularity": "full", "recompute_activations": True}, 1, "means selective, but recompute_granularity full"),
    (
        {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
            "distribute_saved_activations": True,
        },
        1,
        "needs tensor parallelism",
    ),
    # checkpoints
    ({"save": "ckpt", "save_interval": None}, 1, "needs a save_interval of at least 1"),
    ({"save": "ckpt", "save_interval": 0}, 1, "needs a save_interval of at least 1"),
    ({"save": "ckpt", "save_interval": 4, "save_retain_interval": 6}, 1, "is not a multiple of save_interval 4"),
    ({"auto_continue_train": True}, 1, "works in the checkpoint folder, but save null"),
    ({"log_progress": True}, 1, "works in the checkpoint folder, but save null"),
    ({"load_main_params_from_ckpt": True}, 1, "needs no_load_optim: true"),
    ({"ckpt_step": 3}, 1, "neither load nor pretrained_checkpoint is set"),
    # logging, determinism
    ({"logging_level": 17}, 1, "must be 10 (debug)"),
    ({"disable_wandb": False, "wandb_exp_name": ""}, 1, "wandb_exp_name is empty"),
    ({"use_flash_attn": True}, 1, "set use_flash_attn: false"),
    ({"cross_entropy_loss_fusion": True}, 1, "set cross_entropy_loss_fusion: false"),
    # single keys
    ({"micro_batch_size": 0}, 1, "micro_batch_size 0 (exp.yaml:"),
    ({"lr": "abc"}, 1, "lr"),
    ({"lr": float("nan")}, 1, "must be a finite number"),
    ({"seed": 0}, 1, "seed"),
    ({"batch_size": 4}, 1, "micro_batch_size"),
    ({"warmup": 0.1}, 1, "lr_warmup_fraction"),
    ({"model_parallel_size": 2}, 1, "tensor_model_parallel_size"),
    ({"checkpoint_activations": True}, 1, "recompute_granularity"),
    ({"use_turbo_parallel_linear": False}, 1, "please use use_turbo_gemm instead"),
    ({"use_turbo_grouped_mlp": True}, 1, "please use use_turbo_grouped_gemm instead"),
    ({"fp8": "hybrid"}, 1, "fp8 is not implemented yet"),
    ({"micro_batchsize": 2}, 1, "micro_batch_size"),
    ({"lr_warmup_iter": 3}, 1, "lr_warmup_iters"),
]


@pytest.mark.parametrize(("overrides", "world_size", "fragment"), CASES, ids=lambda part: str(part)[:60])
def test_a_rule_says_what_where_and_the_way_out(
    problems_of: Any, overrides: dict[str, Any], world_size: int, fragment: str
) -> None:
    problems = problems_of(overrides, world_size=world_size)
    assert any(fragment in problem for problem in problems), problems


@pytest.mark.parametrize(
    "overrides",
    [
        {"micro_batch_size": 0, "rampup_batch_size": "2 2 12"},
        {"lr": "fast"},
        {"global_batch_size": "many"},
        {"hidden_size": None, "kv_channels": None},
        {"num_attention_heads": None},
        {"max_position_embeddings": None},
        {"train_iters": None},
        {"mock_data": False, "data_path": "0.3 a b c"},
        {"mock_data": False, "data_path": "a", "split": "x", "eval_iters": 1},
    ],
    ids=str,
)
def test_one_mistake_gives_one_message(problems_of: Any, overrides: dict[str, Any]) -> None:
    assert len(problems_of(overrides)) == 1


def test_all_problems_are_reported_together(problems_of: Any) -> None:
    problems = problems_of({"global_batch_size": 10, "micro_batch_size": 4, "min_lr": 1, "lr_warmup_iter": 3, "seed": "x"})
    assert len(problems) == 4


def test_a_bare_language_model_says_exactly_what_to_choose(problems_of: Any) -> None:
    problems = problems_of(base={})
    assert [problem.split(" ")[0] for problem in problems] == ["max_position_embeddings", "there", "tokenizer_type"]
    assert "max_position_embeddings: 1024 will do" in problems[0]


def test_per_split_files_are_checked_like_lists(problems_of: Any, tmp_path: Path) -> None:
    (tmp_path / "lists.json").write_text(json.dumps({"train": "1 a b c", "valid": None, "test": None}))
    problems = problems_of({"mock_data": False, "per_split_data_args_path": "lists.json"})
    assert len(problems) == 1
    assert "b stands where a weight is expected" in problems[0]
    (tmp_path / "lists.json").write_text(json.dumps({"train": "a", "valid": "a", "test": None}))
    (problem,) = problems_of({"mock_data": False, "per_split_data_args_path": "lists.json"})
    assert "per_split_data_args_path" in problem
