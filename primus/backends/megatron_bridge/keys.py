"""`KEYS`: the documented keys of `framework: megatron_bridge` by name, in the page's order, then further ones of its recipes.

What Megatron's door calls the same and means the same by is that door's row. Every other Megatron key, and every field of the
container, can stand beside these.
"""

from dataclasses import replace

from primus.backends.megatron.keys import KEYS as MEGATRON
from primus.backends.megatron.keys.row import inert, live, removed, section
from primus.core.keys import Key

__all__ = ["KEYS", "SECTIONS"]

SECTIONS = {
    "1": "Base module parameters",
    "2": "Training",
    "3": "Fine-tuning method (PEFT)",
    "4": "Parallelism",
    "5": "Training hyperparameters",
    "6": "Learning rate",
    "7": "Precision",
    "8": "Memory optimization",
    "9": "Primus-Turbo",
    "10": "Model and dataset",
    "11": "Further arguments of recipes",
}
"""The chapters of the page; 11 is beyond it."""


def _same(*names: str) -> tuple[Key, ...]:
    return tuple(MEGATRON[name] for name in names)


def _open(*names: str, **docs: str) -> tuple[Key, ...]:
    """Return Megatron's rows of keys whose null is the recipe's value; some mean a little else here."""
    return tuple(replace(row, type=f"{row.type.removesuffix('?')}?", doc=docs.get(row.name, row.doc)) for row in _same(*names))


# A table: a row's identity on its first line, its meaning below.
# fmt: off
_ROWS = (
    *section("1", *_same("trainable", "sink_level", "file_sink_level", "stderr_sink_level")),
    *section(
        "2",
        live("stage", "str", "flavors that may be named", choices=("sft", "pretrain"),
             doc="What the module does: `sft` starts from weights and trains on rows of text, `pretrain` trains on indexed "
                 "files. A flavor that does otherwise is refused."),
    ),
    *section(
        "3",
        live("peft", "str|dict?", "peft",
             doc="Adapters: `lora`, `dora`, `canonical_lora`, or a map of `type` and their fields. `none` or null: all weights "
                 "are trained."),
        live("peft_dim", "int?", "peft.dim", minimum=1,
             doc="Rank of the adapters. Needs `peft`."),
        live("peft_alpha", "float?", "peft.alpha", above=0,
             doc="Adapters are multiplied by alpha / rank. Needs `peft`."),
        live("packed_sequence", "bool?", "dataset.sft.packing",
             doc="Fill sequences of `seq_length` tokens with several samples, none of which sees another; the loss is the "
                 "same. Needs `micro_batch_size: 1`."),
    ),
    *section(
        "4",
        *_open("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        live("virtual_pipeline_model_parallel_size", "int?", "model.parallel.virtual_pipeline_model_parallel_size",
             doc="Chunks of layers that each pipeline stage holds, in turns with the other stages."),
        *_open("context_parallel_size", "sequence_parallel", "use_megatron_fsdp"),
    ),
    *section(
        "5",
        *_open(
            "train_iters", "global_batch_size", "micro_batch_size", "seq_length", "eval_interval", "save_interval",
            global_batch_size="Sequences, or packs, of one optimizer step, over all data-parallel ranks and accumulated "
                              "microbatches.",
            seq_length="Tokens of a sequence, of the model and of its data: a longer sample is cut, a pack is as long. At most "
                       "`max_position_embeddings`.",
            save_interval="Iterations between checkpoints.",
        ),
    ),
    *section(
        "6",
        live("finetune_lr", "float?", "optimizer.lr", minimum=0,
             doc="Highest learning rate of fine-tuning. Flavors that pretrain take `lr`."),
        *_open(
            "min_lr", "lr_warmup_iters", "lr_decay_iters",
            lr_warmup_iters="Iterations over which the learning rate rises linearly; capped below those of the decay, and the "
                            "run says so.",
        ),
    ),
    *section(
        "7",
        live("precision_config", "str|dict?", "mixed_precision",
             doc="Dtypes of the run: `bf16_mixed` (sums of gradients in fp32), `fp16_mixed` (in fp16, with a loss scale), "
                 "`fp32`, or a map of fields. Names with fp8, mxfp8 or nvfp4 are refused."),
        live("comm_overlap_config", "dict?", "ddp, model.pipeline, model.tp_overlap",
             doc="What goes on while ranks exchange, as a map: `tp_comm_overlap`, `overlap_p2p_comm`, `overlap_grad_reduce`, "
                 "`overlap_param_gather`, `bucket_size` and others; what it leaves open follows from the layout. Null: the "
                 "recipe's."),
        live("pipeline_dtype", "str?", "mixed_precision",
             doc="Dtype of messages between pipeline stages, which is that of the weights; another is refused."),
    ),
    *section("8", *_open("recompute_granularity", "recompute_method", "recompute_num_layers")),
    *section(
        "9",
        *_same("enable_primus_turbo", "use_turbo_attention"),
        inert("use_turbo_parallel_linear", "bool", MEGATRON["use_turbo_gemm"].reason,
              doc="Turbo's matrix products in dense linear layers; Megatron's door calls it `use_turbo_gemm`."),
        *_same("use_turbo_grouped_gemm", "moe_use_fused_router_with_aux_score", "enable_turbo_attention_float8"),
        *_same("use_turbo_deepep", "turbo_deepep_num_cu", "turbo_deepep_use_comm_stream", "turbo_sync_free_moe_stage"),
        *_same("use_turbo_fused_act_with_probs", "use_turbo_rms_norm"),
        removed("use_turbo_grouped_mlp", "use_turbo_grouped_gemm",
                doc="Former name of `use_turbo_grouped_gemm`."),
    ),
    *section(
        "10",
        live("recipe", "str", "the whole container",
             doc="Module of recipes, such as `qwen.qwen3`; `primus config recipes` lists them. A dotted path "
                 "is a module of one's own."),
        live("flavor", "str", "the whole container",
             doc="Function of that module that returns the run's defaults, such as `qwen3_8b_finetune_config`."),
        live("hf_path", "str?", "checkpoint.hf_path, tokenizer",
             doc="Hugging Face model that training starts from, and its tokenizer: a folder, or a name on the hub. Null: the "
                 "recipe's."),
        live("dataset", "dict", "dataset",
             doc="Fields of the data set, such as `dataset_name`: a preset (`squad`), a name on the hub, or a path."),
    ),
    *section(
        "11",
        live("peft_dropout", "float?", "peft.dropout", minimum=0, below=1,
             doc="Share of an adapter's inputs that is left out at random. Needs `peft`."),
        live("peft_target_modules", "list[str]?", "peft.target_modules",
             doc="Linears that get adapters, by name or with wildcards. Needs `peft`."),
        live("dir", "path?", "checkpoint.save, checkpoint.load, logger.tensorboard_dir",
             doc="Folder above `name` for checkpoints and TensorBoard. Null: the run folder."),
        live("name", "str?", "checkpoint.save, checkpoint.load, logger.tensorboard_dir",
             doc="Folder of the run inside `dir`."),
        live("skip_save", "bool?", "checkpoint.save",
             doc="Write no checkpoint."),
        live("data_paths", "list[str]?", "dataset.blend",
             doc="Prefixes of indexed files, each behind its weight if they have weights."),
        live("mock", "bool?", "dataset.mock",
             doc="Pretrain on data that is made up; null: if none is named."),
        live("use_null_tokenizer", "bool?", "tokenizer",
             doc="Pretrain without a tokenizer, on numbers."),
        live("dataset_name", "str?", "dataset.sft.source",
             doc="`dataset.dataset_name` in a word."),
    ),
)
# fmt: on

KEYS: dict[str, Key] = {row.name: row for row in _ROWS}
