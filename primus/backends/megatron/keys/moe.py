"""Rows of section 10.6: routers, experts, balancing, dispatch."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

_MOE = "Mixture of experts is"

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "10.6",
    live("num_experts", "int?", "model.moe.num_experts, model.moe.layers", minimum=0,
            doc="Experts of a mixture layer. Null or 0: a dense model."),
    live("moe_layer_freq", "int|str|list[int]", "model.moe.layers",
            doc="Which layers are mixtures: every n-th from the first, or a list such as `([0]*3+[1]*58)`."),
    live("moe_ffn_hidden_size", "int?", "model.moe.ffn_hidden_size", minimum=1,
            doc="Width of an expert. Null: `ffn_hidden_size`."),
    live("moe_shared_expert_overlap", "bool", "model.moe.shared_expert_overlap",
            doc="Run the shared expert beside the dispatch of tokens; alltoall and flex dispatchers only."),
    live("moe_shared_expert_intermediate_size", "int?", "model.moe.shared_expert_intermediate_size", minimum=1,
            doc="Width of the expert that sees every token, all shared experts together. Null: none."),
    live("moe_grouped_gemm", "bool", "model.moe.grouped_gemm",
            doc="Multiply all local experts in one grouped product instead of a loop."),
    live("moe_router_load_balancing_type", "str|list[str]", "model.moe.router_load_balancing_type",
            choices=("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
            doc="What keeps experts evenly used: a loss per microbatch, per sequence or per global batch, Sinkhorn, or "
                "nothing."),
    live("moe_router_dtype", "str?", "model.moe.router_dtype", choices=("fp32", "fp64"),
            doc="Dtype of the router's scores. Null: the model's."),
    live("moe_router_score_function", "str", "model.moe.router_score_function", choices=("softmax", "sigmoid", "sqrtsoftplus"),
            doc="How router logits become scores."),
    live("moe_router_topk", "int", "model.moe.router_topk", minimum=1,
            doc="Experts that each token visits."),
    live("moe_router_pre_softmax", "bool", "model.moe.router_pre_softmax",
            doc="Take the softmax over all experts before the choice, so that the chosen weights need not sum to one."),
    live("moe_router_num_groups", "int?", "model.moe.router_num_groups", minimum=1,
            doc="Groups of experts for a choice in two stages."),
    live("moe_router_group_topk", "int?", "model.moe.router_group_topk", minimum=1,
            doc="Groups that a token may choose experts from; setting it switches the two stages on."),
    live("moe_router_topk_scaling_factor", "float?", "model.moe.router_topk_scaling_factor",
            doc="Factor on the chosen experts' weights, not on the logits. Null or 0: none."),
    live("moe_router_enable_expert_bias", "bool", "model.moe.router_enable_expert_bias",
            doc="Add a bias to scores that are not softmax's, for the choice only; it follows the load instead of a loss."),
    live("moe_router_bias_update_rate", "float", "model.moe.router_bias_update_rate", minimum=0,
            doc="Step by which the expert bias moves after each global batch."),
    inert("moe_use_legacy_grouped_gemm", "bool", "there is one grouped product, whose results equal the older one's",
          doc="Use the older grouped product with one weight tensor for all experts."),
    live("moe_aux_loss_coeff", "float|list[float]", "model.moe.aux_loss_coeff",
            doc="Weight of the balancing loss; one value for each balancing type in a list."),
    live("moe_z_loss_coeff", "float?", "model.moe.z_loss_coeff", minimum=0,
            doc="Weight of the loss that keeps router logits small. Null: not computed; 0 computes and logs it."),
    live("moe_input_jitter_eps", "float?", "model.moe.input_jitter_eps", minimum=0,
            doc="Multiply the router's input by noise of up to this much around 1, in training; each rank draws its own, so "
                "that another layout has other noise."),
    live("moe_token_dispatcher_type", "str", "model.moe.token_dispatcher",
         choices=("allgather", "alltoall", "flex"),
            doc="How tokens travel to the ranks of their experts: all of them to all ranks, a row for each expert of a token, "
                "or (flex) a token once to each rank that has experts of it; all give the same result."),
    inert("moe_enable_deepep", "bool", "the flex dispatcher always sends a token once to a rank, as DeepEP does",
          doc="Let the flex dispatcher use DeepEP's transport."),
    live("moe_per_layer_logging", "bool", "model.moe.per_layer_logging",
            doc="Log balancing losses layer by layer as well as in the mean."),
    live("moe_expert_capacity_factor", "float?", "model.moe.expert_capacity_factor",
            doc="Cap an expert's tokens at this multiple of its even share of the microbatch and drop the rest. Null or "
                "negative: no cap."),
    live("moe_pad_expert_input_to_capacity", "bool", "model.moe.pad_expert_input_to_capacity",
            doc="Fill each expert's input up to its capacity, then a share of each rank's tokens, so that shapes stay."),
    live("moe_token_drop_policy", "str", "model.moe.token_drop_policy", choices=("probs", "position"),
            doc="Which tokens an over-full expert keeps: the most probable or the earliest."),
    inert("moe_extended_tp", "bool", "upstream dropped it; expert_tensor_parallel_size took its place",
          doc="Cut experts over tensor- and expert-parallel ranks together."),
    live("moe_use_upcycling", "bool", "model.moe.use_upcycling",
            doc="Begin from the dense checkpoint under `load` (of width `ffn_hidden_size`): its feed-forward layers, whole or "
                "in slices of `moe_ffn_hidden_size`, become experts. A run that goes on from its own checkpoint loads it."),
    inert("moe_permute_fusion", "bool", "rows are always sorted in one pass, and their sums taken in another",
          doc="Sort tokens by expert in one kernel, and take the sums of their experts in one."),
    live("disable_primus_topk_router", "bool", "model.moe.router_logit_softcapping, model.moe.router_force_load_balancing",
            doc="Use the plain router, without Primus' soft cap, fused scores and even forced balance."),
    live("moe_router_force_load_balancing", "bool", "model.moe.router_force_load_balancing",
            doc="Replace the router's logits by random ones, to measure speed under an even load."),
    inert("use_deprecated_20241209_moe_layer", "bool", "there is one mixture layer, whose results equal the older classes'",
          doc="Use the mixture layer's classes of December 2024."),
    live("moe_router_force_load_balancing_type", "str", "model.moe.router_force_load_balancing", choices=("even", "uniform"),
            doc="Forced balance: the same number of tokens for every expert, or as chance has it."),
)
