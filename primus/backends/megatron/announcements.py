"""What a user should know before the run starts: one line for each value that changes what he probably means.

Rewrites announce themselves where they are made (`patches/args`); these lines are about values that stay as they are.
"""

from collections.abc import Callable

from primus.backends.megatron.params import Notices, Params, Unreadable
from primus.backends.megatron.patches.args.architecture import activation
from primus.backends.megatron.patches.args.duration import counts_samples, total_samples
from primus.backends.megatron.patches.args.positions import position_type
from primus.backends.megatron.patches.args.precision import loss_scale, params_dtype
from primus.backends.megatron.patches.args.schedule import decay_samples
from primus.backends.megatron.patches.args.tokenizer import SIZED

__all__ = ["announce"]


def announce(p: Params) -> list[str]:
    """Return every line that applies."""
    lines: list[str] = []
    for about in _ANNOUNCEMENTS:
        try:
            lines.extend(about(p))
        except Unreadable:
            continue
    return lines


def finetune_starts_over(p: Params) -> Notices:
    """Finetuning from a training checkpoint forgets its progress."""
    if p["finetune"] and p["load"]:
        yield (
            f"STARTING OVER FROM WEIGHTS: {p.where('finetune')}, so {p.where('load')} gives its weights only; iteration, "
            "optimizer, schedule, data position and random states are NOT restored. To resume set finetune: false."
        )


def schedule_comes_from_configuration(p: Params) -> Notices:
    """A preset decides whose schedule wins on resume."""
    resumes = (p["load"] and not p["finetune"]) or p["auto_continue_train"]
    if resumes and p["override_opt_param_scheduler"] and p.is_preset("override_opt_param_scheduler"):
        yield (
            f"on resume the learning-rate schedule comes from this configuration, not from the checkpoint: "
            f"{p.where('override_opt_param_scheduler')}."
        )


def decay_ends_early(p: Params) -> Notices:
    """The last part of the run trains at the floor."""
    rest = total_samples(p) - decay_samples(p)
    if rest > 0 and p["lr_decay_style"] != "constant":
        key = "lr_decay_samples" if counts_samples(p) else "lr_decay_iters"
        yield f"the learning rate reaches {p.where('min_lr')} {rest} samples before the end of the run: {p.where(key)}."


def groups_need_their_switch(p: Params) -> Notices:
    """`num_query_groups` and `group_query_attention` act together."""
    if p.is_chosen("num_query_groups") and p["num_query_groups"] is not None and not p["group_query_attention"]:
        yield f"{p.where('num_query_groups')} has no effect: {p.where('group_query_attention')}."
    if p["group_query_attention"] and p["num_query_groups"] is None:
        yield f"{p.where('group_query_attention')} with num_query_groups null is multi-head attention: set num_query_groups."


def gelu_has_two_forms(p: Params) -> Notices:
    """The fused bias-gelu is another function, by up to 1e-3."""
    if activation(p) == "gelu_tanh" and not p["openai_gelu"]:
        yield f"gelu runs in its tanh form: {p.where('bias_gelu_fusion')} with biases; set it to false for the exact form."


def vocabulary_is_the_tokenizers(p: Params) -> Notices:
    """Most tokenizers bring their size along."""
    if p["vocab_size"] is not None and p.is_chosen("vocab_size") and p["tokenizer_type"] not in (*SIZED, None):
        yield f"{p.where('vocab_size')} has no effect: the vocabulary is that of {p.where('tokenizer_type')}."


def positions_ignore_rotary_keys(p: Params) -> Notices:
    """Rotary keys act on rotary positions."""
    if position_type(p) in ("rope", "yarn"):
        return
    for key in ("rotary_base", "rotary_percent", "rotary_interleaved", "rotary_seq_len_interpolation_factor"):
        if p.is_chosen(key):
            yield f"{p.where(key)} has no effect: {p.where('position_embedding_type')}."


def precision_options_need_their_dtype(p: Params) -> Notices:
    """Options of one dtype do nothing under another."""
    dtype = params_dtype(p)
    if dtype == "float32" and loss_scale(p) is not None and not p["use_distributed_optimizer"]:
        yield f"{p.where('loss_scale')} has no effect: weights are fp32."
    if p["grad_reduce_in_bf16"] and dtype != "bfloat16":
        yield f"{p.where('grad_reduce_in_bf16')} has no effect: {p.where('bf16')}."
    elif p["grad_reduce_in_bf16"] and p["accumulate_allreduce_grads_in_fp32"]:
        yield f"{p.where('accumulate_allreduce_grads_in_fp32')} has no effect: {p.where('grad_reduce_in_bf16')}."


def reporting_has_its_switch(p: Params) -> Notices:
    """W&B, MLflow and TensorBoard stay off while their `disable_*` key is on."""
    names = {"wandb_project": "disable_wandb", "wandb_exp_name": "disable_wandb", "mlflow_run_name": "disable_mlflow"}
    for key, switch in names.items():
        if p[key] and p.is_chosen(key) and p[switch]:
            yield f"{p.where(key)} has no effect: {p.where(switch)}."
    if p["tensorboard_dir"] and p["disable_tensorboard"] and p.is_chosen("disable_tensorboard") and not p["profile"]:
        yield f"{p.where('tensorboard_dir')} has no effect: {p.where('disable_tensorboard')}."


def profile_has_a_writer(p: Params) -> Notices:
    """Without torch's profiler there is nothing to read afterwards."""
    if p["profile"] and not p["use_pytorch_profiler"]:
        yield f"{p.where('profile')} writes no trace file: {p.where('use_pytorch_profiler')}; set it to true."


def evaluation_is_off(p: Params) -> Notices:
    """A user who sets an interval expects evaluations."""
    if p.is_chosen("eval_interval") and p["eval_iters"] == 0 and not p["full_validation"] and not p.is_chosen("eval_iters"):
        yield f"{p.where('eval_interval')} has no effect: {p.where('eval_iters')} switches evaluation off."


def saving_is_off(p: Params) -> Notices:
    """Nothing is kept of a run that does not save."""
    if p["save"] is None and p.is_chosen("save_interval") and p["save_interval"] is not None:
        yield f"{p.where('save_interval')} has no effect: {p.where('save')}, so no checkpoint is written."


_ANNOUNCEMENTS: tuple[Callable[[Params], Notices], ...] = (
    finetune_starts_over,
    schedule_comes_from_configuration,
    decay_ends_early,
    groups_need_their_switch,
    gelu_has_two_forms,
    vocabulary_is_the_tokenizers,
    positions_ignore_rotary_keys,
    precision_options_need_their_dtype,
    reporting_has_its_switch,
    profile_has_a_writer,
    evaluation_is_off,
    saving_is_off,
)
