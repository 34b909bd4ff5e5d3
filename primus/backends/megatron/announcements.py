"""What a user should know before the run starts: one line for each value that changes what he probably means.

Rewrites announce themselves where they are made (`patches/args`); these lines are about values that stay as they are. Keys
that cannot act have a table of their own, `idle.py`.
"""

import os
from collections.abc import Callable
from pathlib import Path

from primus.backends.megatron.idle import idle_keys
from primus.backends.megatron.params import Notices, Params, Unreadable
from primus.backends.megatron.patches.args.architecture import activation
from primus.backends.megatron.patches.args.duration import counts_samples, total_samples
from primus.backends.megatron.patches.args.moe import num_experts
from primus.backends.megatron.patches.args.schedule import decay_samples
from primus.backends.megatron.patches.args.tp_overlap import map_has_idle_parts
from primus.core.keys import show_value

__all__ = ["announce"]

_TRANSPORT = "PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND"


def announce(p: Params) -> list[str]:
    """Return every line that applies."""
    lines: list[str] = []
    for about in _ANNOUNCEMENTS:
        try:
            lines.extend(about(p))
        except Unreadable:
            continue
    return lines


def later_words_win(p: Params) -> Notices:
    """The command line may say a key twice."""
    for key, value in p.values.items():
        earlier = value.over
        if value.source == "cli" and earlier is not None and earlier.source == "cli" and earlier.value != value.value:
            yield f"{p.where(key)} is the later of two words; {key} {show_value(earlier.value)} before it is not used."


def finetune_starts_over(p: Params) -> Notices:
    """Finetuning from a training checkpoint forgets its progress."""
    if p["finetune"] and p["load"]:
        yield (
            f"STARTING OVER FROM WEIGHTS: {p.where('finetune')}, so {p.where('load')} gives its weights only; iteration, "
            "optimizer, schedule, data position and random states are NOT restored. To resume set finetune: false."
        )


def schedule_comes_from_configuration(p: Params) -> Notices:
    """A preset decides whose schedule wins on resume; a first start resumes nothing."""
    if _resumes(p) and p["override_opt_param_scheduler"] and p.is_preset("override_opt_param_scheduler"):
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


def query_groups_have_a_number(p: Params) -> Notices:
    """Groups without a number are single heads."""
    if p["group_query_attention"] and p["num_query_groups"] is None:
        yield f"{p.where('group_query_attention')} with num_query_groups null is multi-head attention: set num_query_groups."


def gelu_has_two_forms(p: Params) -> Notices:
    """The fused bias-gelu is another function, by up to 1e-3."""
    if activation(p) == "gelu_tanh" and not p["openai_gelu"]:
        yield f"gelu runs in its tanh form: {p.where('bias_gelu_fusion')} with biases; set it to false for the exact form."


def profile_has_a_writer(p: Params) -> Notices:
    """Without torch's profiler there is nothing to read afterwards."""
    if p["profile"] and not p["use_pytorch_profiler"]:
        yield f"{p.where('profile')} writes no trace file: {p.where('use_pytorch_profiler')}; set it to true."


def transport_is_torchs(p: Params) -> Notices:
    """The environment may name a transport of Primus-Turbo's."""
    asked = os.environ.get(_TRANSPORT)
    if asked is not None and p["enable_primus_turbo"] and p["use_turbo_deepep"] and num_experts(p) is not None:
        yield f"{_TRANSPORT}={asked} (environment) has no effect: tokens travel to experts by torch's all-to-all."


def load_is_forced(p: Params) -> Notices:
    """A model whose tokens go to random experts learns little; the key is for measuring speed."""
    if num_experts(p) is not None and p["moe_router_force_load_balancing"]:
        yield (
            f"FOR MEASURING ONLY: {p.where('moe_router_force_load_balancing')} sends tokens to experts that their routers did "
            "not choose. To train set it to false."
        )


def first_stage_turns_nothing_on(p: Params) -> Notices:
    """What it stands for upstream is always on here."""
    if p["turbo_sync_free_moe_stage"] == 1:
        yield (
            f"{p.where('turbo_sync_free_moe_stage')} changes nothing: rows are always sorted in one pass; 2 turns "
            "use_turbo_deepep on, 3 use_turbo_fused_act_with_probs too."
        )


def _resumes(p: Params) -> bool:
    continues = p["auto_continue_train"] and p["save"] and any(Path(p.output_path(p["save"])).glob("iter_*"))
    return bool(continues or (p["load"] and not p["finetune"]))


_ANNOUNCEMENTS: tuple[Callable[[Params], Notices], ...] = (
    later_words_win,
    finetune_starts_over,
    schedule_comes_from_configuration,
    decay_ends_early,
    query_groups_have_a_number,
    gelu_has_two_forms,
    profile_has_a_writer,
    load_is_forced,
    transport_is_torchs,
    first_stage_turns_nothing_on,
    map_has_idle_parts,
    idle_keys,
)
