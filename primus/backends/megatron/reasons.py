"""What can keep a key from acting: predicates that return the origin of the cause, and small makers of such predicates."""

from collections.abc import Callable

from primus.backends.megatron.params import Params
from primus.backends.megatron.patches.args import attention, blocks, moe
from primus.backends.megatron.patches.args.context import communication
from primus.backends.megatron.patches.args.duration import counts_samples
from primus.backends.megatron.patches.args.fsdp import is_fsdp, shards
from primus.backends.megatron.patches.args.logging import tensorboard_folder
from primus.backends.megatron.patches.args.offload import named
from primus.backends.megatron.patches.args.pipeline import num_chunks, splits_backward
from primus.backends.megatron.patches.args.positions import position_type, scheme_key
from primus.backends.megatron.patches.args.precision import loss_scale, params_dtype
from primus.backends.megatron.patches.args.schedule import warmup_samples
from primus.backends.megatron.patches.args.tokenizer import NEEDS

__all__ = [
    "Why",
    "attends_nowhere",
    "backend_decides",
    "balances_by_nothing",
    "cuts_sequences",
    "experts_are_here",
    "extends_no_context",
    "first",
    "fp32",
    "gathers_by_layer",
    "has_no_gate",
    "has_no_router_losses",
    "has_one_chunk",
    "has_two_chunks",
    "has_weight_gradients_apart",
    "is_explicit",
    "is_no_hub_tokenizer",
    "is_no_plain_attention",
    "is_not_plain_gelu",
    "is_one_level",
    "is_plain_router",
    "keeps_whole_gradients",
    "keeps_whole_messages",
    "keeps_whole_weights",
    "meets_in_every_step",
    "names_nothing",
    "needs_no_scratch",
    "never_alone",
    "never_decays",
    "only_if",
    "overruled_in_bf16",
    "positions",
    "reads_no_model",
    "recomputes_all",
    "reduces_each_microbatch",
    "rotary_is_said_otherwise",
    "shards_nothing",
    "sinkhorn_chooses",
    "tokenizers",
    "touches_no_checkpoint",
    "under",
    "unless",
    "weighs_no_balance",
    "without",
    "without_board",
    "without_checkpoint",
    "without_context",
    "without_curves",
    "without_dynamic_scale",
    "without_evaluation",
    "without_fsdp",
    "without_pipeline",
    "without_resume",
    "without_warmup",
    "without_weights",
]

Why = Callable[[Params], str | None]
"""What keeps a key from acting, with its origin; None: it acts."""


def without(switch: str) -> Why:
    """Idle while `switch` is off or null."""
    return lambda p: None if p[switch] else p.where(switch)


def under(key: str, *values: object) -> Why:
    """Idle while `key` has one of these values; without any, while it is on."""
    return lambda p: p.where(key) if (p[key] in values if values else p[key]) else None


def unless(key: str, *values: object) -> Why:
    """Idle while `key` has none of these values."""
    return lambda p: None if p[key] in values else p.where(key)


def first(*reasons: Why) -> Why:
    """Idle for the first reason that holds."""
    return lambda p: next((text for why in reasons if (text := why(p))), None)


def only_if(key: str, value: object, why: Why) -> Why:
    """Ask only for this value: another one gets what it says."""
    return lambda p: why(p) if p[key] == value else None


def experts_are_here(p: Params) -> str | None:
    """Every rank has all experts, whole."""
    tensor, expert_tensor = (p.where(key) for key in ("tensor_model_parallel_size", "expert_tensor_parallel_size"))
    if p["expert_model_parallel_size"] > 1 or (p["expert_tensor_parallel_size"] or p["tensor_model_parallel_size"]) > 1:
        return None
    return f"{p.where('expert_model_parallel_size')}, {tensor if p['expert_tensor_parallel_size'] is None else expert_tensor}"


def sinkhorn_chooses(p: Params) -> str | None:
    return p.where("moe_router_load_balancing_type") if "sinkhorn" in moe.balancing(p) else None


def balances_by_nothing(p: Params) -> str | None:
    return p.where("moe_router_load_balancing_type") if moe.balancing(p) == ["none"] else None


def weighs_no_balance(p: Params) -> str | None:
    """A loss without a weight is none; other ways of balancing need no weight."""
    has_loss = not {"none", "sinkhorn"} & set(moe.balancing(p))
    return p.where("moe_aux_loss_coeff") if has_loss and not any(moe.coefficients(p)) else None


def has_no_router_losses(p: Params) -> str | None:
    if p["moe_z_loss_coeff"] is not None or (any(moe.coefficients(p)) and not balances_by_nothing(p)):
        return None
    return f"{balances_by_nothing(p) or p.where('moe_aux_loss_coeff')}, {p.where('moe_z_loss_coeff')}"


def is_plain_router(p: Params) -> str | None:
    """What the plain router lacks is not asked for."""
    if (p["router_logit_softcapping"] or 0) > 0 or p["moe_router_force_load_balancing"]:
        return None
    return f"{p.where('router_logit_softcapping')}, {p.where('moe_router_force_load_balancing')}"


def without_pipeline(p: Params) -> str | None:
    return p.where("pipeline_model_parallel_size") if p["pipeline_model_parallel_size"] == 1 else None


def keeps_whole_messages(p: Params) -> str | None:
    """A message is shared out between tensor-parallel ranks that would each send all of it."""
    if p["tensor_model_parallel_size"] == 1:
        return p.where("tensor_model_parallel_size")
    return under("sequence_parallel")(p)


def has_one_chunk(p: Params) -> str | None:
    return p.where("num_virtual_stages_per_pipeline_rank") if num_chunks(p) == 1 else None


def has_weight_gradients_apart(p: Params) -> str | None:
    """The schedule places them."""
    return (
        p.where("patch_primus_pipeline" if p["patch_primus_pipeline"] else "patch_zero_bubble") if splits_backward(p) else None
    )


def without_context(p: Params) -> str | None:
    return p.where("context_parallel_size") if p["context_parallel_size"] == 1 else None


def is_one_level(p: Params) -> str | None:
    return None if "a2a+p2p" in communication(p) else p.where("cp_comm_type")


def without_fsdp(p: Params) -> str | None:
    return None if is_fsdp(p) else p.where("use_megatron_fsdp")


def shards_nothing(p: Params) -> str | None:
    return p.where("data_parallel_sharding_strategy") if shards(p, "no_shard") else None


def keeps_whole_gradients(p: Params) -> str | None:
    strategy = p.where("data_parallel_sharding_strategy")
    return without_fsdp(p) or (None if shards(p, "optim_grads", "optim_grads_params") else strategy)


def keeps_whole_weights(p: Params) -> str | None:
    return without_fsdp(p) or (None if shards(p, "optim_grads_params") else p.where("data_parallel_sharding_strategy"))


def reduces_each_microbatch(p: Params) -> str | None:
    """Sharded gradients are reduced by layer, in every microbatch."""
    return None if keeps_whole_gradients(p) else p.where("data_parallel_sharding_strategy")


def gathers_by_layer(p: Params) -> str | None:
    """Sharded weights are gathered while their layer runs."""
    return None if keeps_whole_weights(p) else p.where("data_parallel_sharding_strategy")


def has_two_chunks(p: Params) -> str | None:
    """The first two are gathered at once."""
    if num_chunks(p) > 2:
        return None
    return p.where("num_virtual_stages_per_pipeline_rank") if p["pipeline_model_parallel_size"] > 1 else without_pipeline(p)


def without_checkpoint(p: Params) -> str | None:
    """Nothing is ever read."""
    return None if p["load"] or p["pretrained_checkpoint"] or p["auto_continue_train"] else p.where("load")


def touches_no_checkpoint(p: Params) -> str | None:
    """Nothing is written either."""
    return f"{p.where('save')} and {p.where('load')}" if p["save"] is None and without_checkpoint(p) else None


def never_alone(p: Params) -> str | None:
    """A persistent checkpoint is written wherever one is due."""
    every = p["save_interval"]
    return p.where("save_interval") if every and p["non_persistent_save_interval"] % every == 0 else None


def needs_no_scratch(p: Params) -> str | None:
    """Nothing is written, and nothing is looked for where a run begins."""
    if p["non_persistent_save_interval"] is not None or (p["auto_continue_train"] and p["save"]):
        return None
    idle = p["load"] is None or p["finetune"] or p["ckpt_step"]
    return p.where("non_persistent_save_interval") if idle else None


def without_weights(p: Params) -> str | None:
    """Continuing by itself restores everything, whatever these keys say."""
    return None if p["load"] or p["pretrained_checkpoint"] else p.where("load")


def without_resume(p: Params) -> str | None:
    if p["auto_continue_train"]:
        return None
    return p.where("finetune") if p["load"] and p["finetune"] else without("load")(p)


def without_evaluation(p: Params) -> str | None:
    return None if p["eval_iters"] or p["full_validation"] else p.where("eval_iters")


def without_dynamic_scale(p: Params) -> str | None:
    if not p["fp16"]:
        return p.where("fp16")
    return p.where("loss_scale") if loss_scale(p) is not None else None


def fp32(p: Params) -> str | None:
    """The distributed optimizer scales in every dtype."""
    is_idle = params_dtype(p) == "float32" and not p["use_distributed_optimizer"]
    return f"weights are fp32 ({p.where('fp16')}, {p.where('bf16')})" if is_idle else None


def overruled_in_bf16(p: Params) -> str | None:
    return p.where("grad_reduce_in_bf16") if p["bf16"] and p["grad_reduce_in_bf16"] else None


def never_decays(p: Params) -> str | None:
    """A warm-up given as a fraction still reads the length."""
    return p.where("lr_decay_style") if p["lr_decay_style"] == "constant" and p["lr_warmup_fraction"] is None else None


def without_warmup(p: Params) -> str | None:
    count = "lr_warmup_samples" if counts_samples(p) else "lr_warmup_iters"
    return None if warmup_samples(p) else p.where(count)


def without_board(p: Params) -> str | None:
    return None if tensorboard_folder(p) else p.where("disable_tensorboard")


def without_curves(p: Params) -> str | None:
    """TensorBoard and W&B draw the same curves."""
    is_drawn = tensorboard_folder(p) or not p["disable_wandb"]
    return None if is_drawn else f"{p.where('disable_tensorboard')} and {p.where('disable_wandb')}"


def extends_no_context(p: Params) -> str | None:
    """Idle unless positions are stretched beyond a context."""
    return None if p["use_rope_scaling"] else positions("yarn")(p)


def positions(*types: str) -> Why:
    """Idle unless positions enter in one of these ways."""

    def why(p: Params) -> str | None:
        if position_type(p) in types:
            return None
        return p.where(scheme_key(p))

    return why


def rotary_is_said_otherwise(p: Params) -> str | None:
    is_overruled = p["use_rotary_position_embeddings"] and p["position_embedding_type"] != "rope"
    return p.where("use_rotary_position_embeddings") if is_overruled else None


def backend_decides(p: Params) -> str | None:
    """The key is a preference; a deterministic run needs it off."""
    backend = p["attention_backend"]
    if p["use_flash_attn"]:
        return p.where("attention_backend") if backend in ("unfused", "local") else None
    if backend in ("unfused", "local") or p["deterministic_mode"]:
        return None
    return f"{p.where('attention_backend')} is fused attention also without it; set attention_backend: unfused"


def is_explicit(p: Params) -> str | None:
    """Scaling by layer needs the scores."""
    return under("apply_query_key_layer_scaling")(p) if p["attention_backend"] in ("flash", "fused") else None


def is_no_plain_attention(p: Params) -> str | None:
    """Some other form has what attention is asked to do."""
    if p["context_parallel_size"] > 1 and "a2a" not in communication(p):
        return p.where("cp_comm_type")
    if attention.window(p) is not None and not attention.full_layers(p):
        return p.where("window_size")
    switches = ("attention_dropout", "use_sink_attention", "attn_logit_softcapping", "apply_query_key_layer_scaling")
    return first(under("attention_backend", "unfused", "local"), *map(under, switches), under("reset_attention_mask"))(p)


def has_no_gate(p: Params) -> str | None:
    """The activation multiplies no two halves."""
    if p["swiglu"] or p["quick_geglu"]:
        return None
    return f"{p.where('swiglu')}, {p.where('quick_geglu')}"


def attends_nowhere(p: Params) -> str | None:
    """All layers mix tokens in other ways, or not at all."""
    if "attention" in (blocks.mixing(p) or ("attention",)):
        return None
    said = next((key for key in (blocks.VARIANT, "lfm_layer_types") if p[key]), "model_type")
    return f"no layer has attention, {p.where(said)}"


def is_not_plain_gelu(p: Params) -> str | None:
    """The fused form differs from the plain one only for biased GELU."""
    other = next((key for key in ("swiglu", "squared_relu", "quick_geglu") if p[key]), None)
    return p.where(other) if other else without("add_bias_linear")(p)


def tokenizers(*kinds: str) -> Why:
    """Idle unless the tokenizer is one of these kinds."""
    return unless("tokenizer_type", *kinds)


def reads_no_model(p: Params) -> str | None:
    return p.where("tokenizer_type") if p["tokenizer_type"] in NEEDS else None


def is_no_hub_tokenizer(p: Params) -> str | None:
    others = {*NEEDS, "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "TikTokenizer"}
    return p.where("tokenizer_type") if p["tokenizer_type"] in others else None


def cuts_sequences(p: Params) -> str | None:
    """1F1B over slices goes before the other schedules of its section."""
    return p.where("num_seq_splits") if p["num_seq_splits"] > 1 else None


def meets_in_every_step(p: Params) -> str | None:
    """Where ranks come together after each iteration, stages have waited for the norm."""
    return next((p.where(key) for key in ("exit_signal_handler", "exit_duration_in_mins", "dump_pp_data") if p[key]), None)


def names_nothing(p: Params) -> str | None:
    return None if named(p) else p.where("offload_ops")


def recomputes_all(p: Params) -> str | None:
    """What is computed again is not kept."""
    return p.where("recompute_method") if p["recompute_granularity"] == "full" and p["recompute_method"] == "uniform" else None
