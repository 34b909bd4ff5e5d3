"""Rows of section 6: what is saved, what a run starts from."""

from primus.backends.megatron.keys.row import inert, live, pending, section

__all__ = ["ROWS"]

_ARGUMENTS = "Reading the configuration back from a checkpoint is"
_ASYNC = "Saving in the background is"
_CONVERT = "Conversion between checkpoint formats is"
_REPLACED = "ckpt_format and ckpt_fully_parallel_save took its place"
_STRICTNESS = (
    "assume_ok_unexpected", "log_unexpected", "log_all", "raise_unexpected", "raise_all",
    "return_unexpected", "return_all", "ignore_all",
)  # fmt: skip

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "6",
    live("save", "path?", "checkpoint.save",
         doc="Folder for checkpoints, honoured as given; a relative path lies in the run folder. Null never saves."),
    live("save_interval", "int?", "checkpoint.save_interval", aka=("save_steps",),
         doc="Iterations between checkpoints; required with `save`."),
    live("save_retain_interval", "int?", "checkpoint.save_retain_interval", minimum=1,
         doc="Keep checkpoints at multiples of it and the newest one; delete the others once a newer one is complete. "
             "A multiple of `save_interval`; null keeps all."),
    live("no_save_optim", "bool?", "checkpoint.no_save_optim",
         doc="Leave optimizer and schedule out of checkpoints."),
    live("no_save_rng", "bool?", "checkpoint.no_save_rng",
         doc="Leave random states out of checkpoints."),
    live("load", "path?", "checkpoint.load", aka=("resume_from_checkpoint",),
         doc="Checkpoint folder to start from: the one with the tracker file, not an `iter_` folder in it."),
    live("load_main_params_from_ckpt", "bool", "checkpoint.load_main_params_from_ckpt",
         doc="Take the fp32 main weights from the checkpoint although the rest of the optimizer state is not loaded. "
             "Needs `no_load_optim`."),
    live("no_load_optim", "bool?", "checkpoint.no_load_optim",
         doc="Start optimizer and schedule afresh from a loaded checkpoint."),
    live("no_load_rng", "bool?", "checkpoint.no_load_rng",
         doc="Do not restore random states from a loaded checkpoint."),
    live("finetune", "bool", "checkpoint.finetune",
         doc="Take only the weights of `load`: iteration 0, fresh optimizer, schedule, counters and random states. "
             "Set it to false to resume."),
    pending("use_checkpoint_args", "bool", _ARGUMENTS,
            doc="Take the architecture from the checkpoint's own configuration."),
    pending("use_mp_args_from_checkpoint_args", "bool", _ARGUMENTS,
            doc="With `use_checkpoint_args` take the degrees of model parallelism from the checkpoint as well."),
    pending("use_tokenizer_model_from_checkpoint_args", "bool", _ARGUMENTS,
            doc="With `use_checkpoint_args` take the tokenizer from the checkpoint as well."),
    live("exit_on_missing_checkpoint", "bool", "checkpoint.exit_on_missing_checkpoint",
         doc="Refuse to start when `load` is set and holds no checkpoint; false starts from fresh weights with a warning."),
    live("non_persistent_save_interval", "int?", "checkpoint.non_persistent.save_interval", minimum=1,
         doc="Iterations between checkpoints that the next one of their kind replaces; where a persistent one is due, it alone "
             "is written. Needs `save` and `non_persistent_ckpt_type`."),
    live("non_persistent_ckpt_type", "str?", "checkpoint.non_persistent.kind", choices=("global", "local", "in_memory"),
         doc="`global` writes them in `ckpt_format` to a shared folder, `local` each rank's part to its node's disk. A run "
             "that resumes takes one that is no older than the persistent one. `in_memory` is refused: memory ends with the "
             "process."),
    live("non_persistent_global_ckpt_dir", "path?", "checkpoint.non_persistent.global_dir",
         doc="Shared folder of `global` non-persistent checkpoints, in which each run has a folder of its own. Null: "
             "`non_persistent` under `save`, or under `load`."),
    live("non_persistent_local_ckpt_dir", "path?", "checkpoint.non_persistent.local_dir",
         doc="Folder on each node's disk for `local` non-persistent checkpoints, in which each run has a folder of its own; a "
             "relative path lies in the run folder."),
    live("non_persistent_local_ckpt_algo", "str", "checkpoint.non_persistent.local_algo", choices=("fully_parallel", "atomic"),
         doc="Local checkpoints: what several ranks hold is written by one of them and passed on when it is read, or every "
             "rank writes all it needs."),
    live("pretrained_checkpoint", "path?", "checkpoint.pretrained_checkpoint",
         doc="Checkpoint whose weights the run starts from while `load` holds none yet."),
    live("ckpt_step", "int?", "checkpoint.ckpt_step", minimum=0,
         doc="Load this iteration instead of the newest. Null or 0: the newest."),
    inert("use_dist_ckpt_deprecated", "bool", _REPLACED,
          doc="Old switch for sharded checkpoints."),
    pending("use_persistent_ckpt_worker", "bool", _ASYNC,
            doc="Keep one writer process for all background saves instead of starting one each time."),
    live("auto_detect_ckpt_format", "bool", "checkpoint.auto_detect_ckpt_format",
         doc="Accept a checkpoint whose format on disk differs from `ckpt_format`."),
    inert("dist_ckpt_format_deprecated", "str?", _REPLACED,
          doc="Old name of the sharded format."),
    live("ckpt_format", "str", "checkpoint.ckpt_format", choices=("torch", "torch_dist"),
         doc="`torch_dist` writes through torch.distributed.checkpoint and loads into any layout; "
             "`torch` writes one file per model-parallel rank."),
    pending("ckpt_convert_format", "str?", _CONVERT, choices=("torch", "torch_dist"),
            doc="Load, write the checkpoint in this format, and leave."),
    pending("ckpt_convert_save", "path?", _CONVERT,
            doc="Folder that receives the converted checkpoint."),
    pending("ckpt_convert_update_legacy_dist_opt_format", "bool", _CONVERT,
            doc="Reorder the optimizer shards of checkpoints older than February 2024 while converting."),
    inert("ckpt_fully_parallel_save_deprecated", "bool", _REPLACED,
          doc="Old switch for parallel writing."),
    live("ckpt_fully_parallel_save", "bool", "checkpoint.fully_parallel_save",
         doc="Data-parallel ranks share the writing of replicated tensors; false lets the first replica write them all."),
    pending("async_save", "bool?", _ASYNC,
            doc="Copy the state, go on training and write in the background; the tracker moves when all ranks are done."),
    pending("ckpt_fully_parallel_load", "bool", "Shared reading of checkpoints is",
            doc="Data-parallel ranks read a part each and exchange them, instead of each reading everything."),
    pending("ckpt_assume_constant_structure", "bool", "Reuse of save plans is",
            doc="Plan a save once and reuse the plan, since the tensors do not change during a run."),
    live("dist_ckpt_strictness", "str", "checkpoint.strictness", choices=_STRICTNESS,
         doc="What to do when the checkpoint lacks a tensor the model asks for (`_unexpected`) "
             "or holds others as well (`_all`): log, raise, or ignore."),
    inert("dist_ckpt_save_pre_mcore_014", "bool?", "checkpoints are written in one sharded layout only",
          doc="Write the sharded layout that Megatron-Core used before 0.14."),
    inert("dist_ckpt_optim_fully_reshardable", "bool?", "optimizer state in `torch_dist` always loads into any layout",
          doc="Write optimizer state so that tensor and pipeline sizes may change too."),
    live("auto_continue_train", "bool", "checkpoint.auto_continue_train",
         doc="When `save` already holds a checkpoint, resume from it fully, whatever `load`, `finetune` and `no_load_*` say."),
    live("disable_last_saving", "bool", "checkpoint.disable_last_saving",
         doc="Write no checkpoint at the last iteration; saves on an earlier exit still happen."),
)
