"""Rows of section 2: batch arithmetic, length of the run, evaluation, watchdogs, seeds."""

from primus.backends.megatron.keys.row import inert, live, pending, retired, section

__all__ = ["ROWS"]

_BERT = "only BERT models read it; this engine trains decoder-only models"
_VISION = "only vision models read it; this engine trains language models"
_SITE = "it talks to a scheduler service of one site (`userlib.auto_resume`) that is not publicly available"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "2",
    retired("yaml_cfg", "path?", "write the values as overrides of the experiment",
            doc="Former route for a second YAML that replaces the whole configuration."),
    pending("spec", "str|list[str]?", "Layer specifications are",
            doc="Layer specification of the model: `local`, or module path and attribute. Null builds the layers from "
                "the other keys."),
    live("micro_batch_size", "int", "train.micro_batch_size", minimum=1, aka=("per_device_train_batch_size", "mbs"),
         doc="Sequences that a data-parallel rank handles in one forward and backward; accumulation repeats it."),
    retired("batch_size", "int?", "use micro_batch_size for one forward and global_batch_size for one step",
            doc="Old name of `micro_batch_size`."),
    live("global_batch_size", "int?", "train.global_batch_size", minimum=1, aka=("gbs",),
         doc="Sequences of one optimizer step, counted over all data-parallel ranks and accumulated microbatches. "
             "Null means one microbatch on every rank."),
    live("rampup_batch_size", "list[int]?", "train.rampup_batch_size",
         doc="`[start, increment, samples]`, or the same as words, `2 2 12`: the batch grows from `start` to "
             "`global_batch_size` in equal steps over that many samples."),
    live("decrease_batch_size_if_needed", "bool", "train.decrease_batch_size_if_needed",
         doc="Round a batch that micro batch x data parallel does not divide down to the next multiple instead of refusing it. "
             "It has nothing to do with memory."),
    live("check_for_nan_in_loss_and_grad", "bool", "train.check_for_nan_in_loss_and_grad",
         doc="Stop at the first NaN or infinity in a microbatch's loss or in a gradient. "
             "Dynamic loss scaling switches it off, as overflows are its signal."),
    live("check_for_spiky_loss", "bool", "train.check_for_spiky_loss",
         doc="Warn when a microbatch's loss is ten times the largest of the first hundred."),
    live("check_for_large_grads", "bool", "train.check_for_large_grads",
         doc="Warn when the norm of a gradient bucket is ten times the largest of the first hundred."),
    live("make_vocab_size_divisible_by", "int", "model.make_vocab_size_divisible_by", minimum=1,
         doc="The embedding is padded with dummy rows to a multiple of this number x tensor-parallel size; "
             "dummy rows never enter the softmax."),
    live("exit_signal_handler", "bool", "train.exit_signal_handler",
         doc="On SIGTERM finish the iteration, save a checkpoint and leave with code 0."),
    live("exit_duration_in_mins", "float?", "train.exit_duration_in_mins", minimum=0,
         doc="Save and leave with code 0 after the first iteration that ends this many minutes after the process started."),
    live("exit_interval", "int?", "train.exit_interval", minimum=1,
         doc="Save and leave with code 0 after an iteration whose number this divides."),
    inert("onnx_safe", "bool?", _BERT,
          doc="Avoid operations of the old BERT model that ONNX cannot export."),
    inert("bert_binary_head", "bool", _BERT,
          doc="Add the sentence-pair head to a BERT model."),
    live("use_flash_attn", "bool", "model.attention.backend",
         doc="Let `attention_backend: auto` prefer the fused attention kernel; `deterministic_mode` refuses it."),
    live("seed", "int", "rng.seed", minimum=1,
         doc="Seed of weights, dropout and data order."),
    live("data_parallel_random_init", "bool", "rng.data_parallel_random_init",
         doc="Give each data-parallel rank random streams of its own, and checkpoint them one by one; "
                "replicas still start from equal weights."),
    live("init_method_xavier_uniform", "bool", "model.init.xavier_uniform",
         doc="Draw every matrix Xavier-uniformly; the depth scaling of output projections falls away."),
    pending("test_mode", "bool", "Cross-rank checks inside attention are",
            doc="In each forward compare the query and key norm weights and their gradients over tensor-parallel ranks. "
                "It does not shorten the run."),
    live("train_iters", "int?", "train.train_iters, scheduler.lr_decay_steps, scheduler.weight_decay_incr_steps",
         aka=("max_steps", "num_steps", "train_steps"),
         doc="Optimizer iterations over all runs, at least 1; a run resumed at k makes the remaining ones. "
             "Excludes `train_samples`."),
    live("train_samples", "int?", "train.train_samples, scheduler.lr_decay_steps, scheduler.weight_decay_incr_steps",
         doc="Length of the run in samples, at least one batch; schedules then count samples too. "
             "Needs `train_iters: null` and `lr_warmup_iters: 0`."),
    live("eval_iters", "int", "train.evaluation.eval_iters", minimum=0,
         doc="Global batches of one evaluation, of the validation after the run and of the test; 0 switches them off, but not "
             "what `full_validation` asks for."),
    live("eval_interval", "int?", "train.evaluation.eval_interval", minimum=1,
         doc="Iterations between evaluations. Acts with `eval_iters` or `full_validation`."),
    live("full_validation", "bool", "train.evaluation.full_validation",
         doc="Walk the whole validation split once per evaluation, whatever `eval_iters` says."),
    live("multiple_validation_sets", "bool", "train.evaluation.multiple_validation_sets",
         doc="Report each prefix of `valid_data_path` on its own. Needs `full_validation`."),
    live("skip_train", "bool", "train.skip_train",
         doc="Only evaluate: no optimizer is built, validation and test run once."),
    pending("train_sync_interval", "int?", "Control of the device's queue is", minimum=1,
         doc="Iterations between waits for the device's queue, so that the host cannot run far ahead; no barrier, no "
             "effect on a CPU."),
    inert("adlr_autoresume", "bool", _SITE,
          doc="Ask a site's scheduler for the end of the time slot, save and requeue."),
    inert("adlr_autoresume_interval", "int", _SITE,
          doc="Iterations between two questions of `adlr_autoresume`."),
    live("manual_gc", "bool", "train.manual_gc",
         doc="Switch Python's automatic garbage collection off and collect on all ranks at the same iterations."),
    live("manual_gc_interval", "int", "train.manual_gc_interval", minimum=0,
         doc="Iterations between collections under `manual_gc`; 0 never collects between steps."),
    live("manual_gc_eval", "bool", "train.manual_gc_eval",
         doc="Under `manual_gc` also collect before and after each evaluation."),
    inert("mask_type", "str", _VISION, choices=("random", "row"),
          doc="Shape of the masked area in image inpainting."),
    inert("mask_factor", "float", _VISION,
          doc="Share of an image that inpainting masks."),
    inert("iter_per_epoch", "int", _VISION,
          doc="Iterations that DINO counts as an epoch."),
)
