"""The feed-forward half of a layer, dense or sparse."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.kernels.activation import ACTIVATIONS, gated_variant
from primus.engine.kernels.expert_mlp import ExpertForms
from primus.engine.kernels.grouped_linear import product_form
from primus.engine.kernels.pick import pick
from primus.engine.kernels.weighted_activation import AnyWeighted, weighted_activation
from primus.engine.model.build.parts import initial
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mlp import MLP
from primus.engine.model.moe.dispatch import Dispatch, DispatchByExchange, DispatchByGather, DispatchOnce
from primus.engine.model.moe.experts import Experts
from primus.engine.model.moe.layer import MoELayer
from primus.engine.model.moe.router import Router
from primus.engine.model.moe.shared import GatedSharedExpert
from primus.engine.model.moe.upcycling import Upcycling, repeated
from primus.engine.model.parameter import Initial, Place, normal
from primus.engine.model.recompute import Recompute, keep

__all__ = ["feed_forward"]


def feed_forward(config: ModelConfig, place: Place, number: int) -> nn.Module:
    """Return the feed-forward half of layer `number`."""
    if number in config.moe.layers:
        return _moe(config, place)
    return _mlp(config, place, config.ffn_width(number))


def _moe(config: ModelConfig, place: Place) -> MoELayer:
    m, h = config.moe, config.hidden_size
    assert m.num_experts is not None
    experts = Experts(
        place,
        experts=m.num_experts,
        hidden=h,
        width=m.ffn_hidden_size or config.ffn_hidden_size,
        halves=2 if config.activation in GATED_ACTIVATIONS else 1,
        forms=_expert_forms(config, place),
        initial=initial(config),
        deep=initial(config, deep=True),
        bias=config.add_bias_linear,
    )
    shared = m.shared_expert_intermediate_size
    return MoELayer(
        router=Router(
            place,
            m,
            h,
            initial=_router_initial(config),
            initial_bias=normal(config.init.method_std) if config.add_bias_linear else None,
        ),
        experts=experts,
        shared_experts=None if shared is None else _mlp(config, place, shared, gated=m.shared_expert_gate),
        dispatch=_dispatch(m, place),
        shared_overlaps=m.shared_expert_overlap,
        run=Recompute(place.streams) if config.recompute.experts else keep,
    )


def _dispatch(config: MoEConfig, place: Place) -> Dispatch:
    if place.etp_ep.size == 1:
        return Dispatch(config.router_topk)
    if config.token_dispatcher == "allgather":
        return DispatchByGather(config.router_topk, place.etp_ep, place.ep)
    kind = DispatchOnce if config.token_dispatcher == "flex" else DispatchByExchange
    return kind(config.router_topk, place.etp_ep, place.ep, place.etp, place.lanes)


def _mlp(config: ModelConfig, place: Place, f: int, *, gated: bool = False) -> MLP:
    halves = 2 if config.activation in GATED_ACTIVATIONS else 1
    h, bias = config.hidden_size, config.add_bias_linear
    kind = partial(GatedSharedExpert, place, h, initial=initial(config)) if gated else MLP
    return kind(
        linear_fc1=ColumnParallelLinear(
            place, h, halves * f, bias=bias, initial=initial(config), blocks=halves, overlap=config.tp_overlap.fc1
        ),
        activation=_activation(config),
        linear_fc2=RowParallelLinear(place, f, h, bias=bias, initial=initial(config, deep=True), overlap=config.tp_overlap.fc2),
    )


def _router_initial(config: ModelConfig) -> Initial:
    recipe = Upcycling.of(config)
    return initial(config) if recipe is None else repeated(initial(config), recipe.granularity)


def _expert_forms(config: ModelConfig, place: Place) -> ExpertForms:
    choose = partial(pick, fusion=config.fusion, device_type=place.device.type, dtype=place.dtype)
    is_plain = config.activation_clamp is None and not config.glu_linear_offset
    form = choose("weighted_activation")
    return ExpertForms(
        weighted_activation(config.activation, form) if is_plain else AnyWeighted(_activation(config)),
        grouped=config.moe.grouped_gemm,
        product=product_form(choose("grouped_gemm")),
    )


def _activation(config: ModelConfig) -> Callable[[Tensor], Tensor]:
    if config.activation_clamp is None and not config.glu_linear_offset:
        return ACTIVATIONS[config.activation]
    return gated_variant(config.activation, clamp=config.activation_clamp, offset=config.glu_linear_offset)
