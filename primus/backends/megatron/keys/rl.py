"""Rows of section 12: GRPO. Without `perform_rl_step` none of them acts."""

from primus.backends.megatron.keys.row import pending, section

__all__ = ["ROWS"]

_RL = "Reinforcement learning is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "12",
    pending("perform_rl_step", "bool", _RL,
            doc="Train on rewarded answers that the model itself generates, by GRPO, instead of on a text corpus."),
    pending("rl_prompts_per_eval", "int", _RL, minimum=-1,
            doc="Prompts of each environment in one evaluation; -1 takes its whole validation set."),
    pending("grpo_prompts_per_step", "int", _RL, minimum=1,
            doc="Prompts that one round of rollouts collects over all data-parallel ranks."),
    pending("grpo_group_size", "int", _RL, minimum=1,
            doc="Answers to each prompt; their rewards are compared with one another."),
    pending("grpo_iterations", "int", _RL, minimum=1,
            doc="Passes over each collected round."),
    pending("grpo_clamp_eps_lower", "float", _RL, minimum=0, maximum=1,
            doc="How far below 1 the ratio of new to old probability counts."),
    pending("grpo_clamp_eps_upper", "float", _RL, minimum=0,
            doc="How far above 1 the ratio of new to old probability counts."),
    pending("grpo_kl_beta", "float", _RL, minimum=0,
            doc="Weight of the divergence from the frozen reference model; 0 needs no reference."),
    pending("grpo_entropy_term_weight", "float", _RL,
            doc="Weight of the entropy of the model's choices; positive rewards variety."),
    pending("grpo_filter_groups_with_same_reward", "bool", _RL,
            doc="Drop prompts whose answers all earn the same and draw others."),
    pending("grpo_default_temperature", "float", _RL, minimum=0,
            doc="Softmax temperature of rollouts."),
    pending("grpo_default_top_p", "float", _RL, minimum=0, maximum=1,
            doc="Probability mass that rollouts sample from; 0 samples from everything."),
    pending("langrl_inference_server_type", "str", _RL, choices=("inplace_megatron", "inplace_megatron_chat"),
            doc="Whether rollouts prompt with raw text or with chat messages."),
    pending("langrl_inference_server_conversation_template", "str?", _RL,
            doc="Tokenizer whose chat template turns messages into text."),
    pending("langrl_env_config", "path?", _RL,
            doc="YAML list of the environments that pose prompts and reward answers."),
    pending("rl_offload_optimizer_during_inference", "bool", _RL,
            doc="Keep optimizer state in host memory during rollouts."),
    pending("rl_offload_kv_cache_during_training", "bool", _RL,
            doc="Keep the key-value cache in host memory between rollouts."),
    pending("rl_remove_kv_cache_during_training", "bool", _RL,
            doc="Free the key-value cache after rollouts and allocate it anew."),
    pending("rl_reset_cuda_graphs", "bool", _RL,
            doc="Delete captured graphs after each phase and capture them again."),
    pending("rl_partial_rollouts", "bool", _RL,
            doc="Let unfinished answers continue in the next round."),
    pending("rl_inference_logprobs_is_correction", "bool", _RL,
            doc="Weigh tokens by how their probability in training differs from the sampler's."),
    pending("rl_importance_sampling_truncation_coef", "float?", _RL, minimum=0,
            doc="Largest weight of `rl_inference_logprobs_is_correction`. Null: no limit."),
    pending("rl_calculate_intra_group_similarity", "bool", _RL,
            doc="Log how alike the answers to one prompt are, by comparing their text."),
)
