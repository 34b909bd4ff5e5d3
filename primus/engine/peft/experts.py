"""Experts with adapters: one for all experts of a layer, which every routed token meets, or one for each expert.

What all experts share is whole on every rank of a stage, and each rank has a part of its gradient: of its tokens and of its
part of the matrices. An expert's own adapter lies where the expert does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from primus.engine.config.peft import PEFTConfig
from primus.engine.kernels.adapted_expert_mlp import Pair, adapted_expert_mlp
from primus.engine.model.moe.experts import Experts
from primus.engine.model.parameter import Place
from primus.engine.parallel.sharding import Sharding, global_shape, sharding_of, slice_global
from primus.engine.peft.adapter import Factor, initial_rule
from primus.errors import ConfigError

__all__ = ["AdaptedExperts", "ExpertLoRA"]


class ExpertLoRA(nn.Module):
    """The adapter of one grouped linear."""

    def __init__(self, place: Place, weight: nn.Parameter, peft: PEFTConfig) -> None:
        super().__init__()
        sharding = sharding_of(weight)
        experts, outputs, inputs = global_shape(weight.shape, sharding, place)
        first, last = initial_rule(peft.lora_A_init_method), initial_rule(peft.lora_B_init_method)
        if peft.share_expert_adapters:
            a = b = Sharding(dim=None, sequence_parallel_grad=place.tp.size > 1)
            self.linear_in = Factor(place, (peft.dim, inputs), a, first)
            self.linear_out = Factor(place, (outputs, peft.dim), b, last)
        else:
            a = Sharding(dim=2 if sharding.dim == 2 else None, is_expert=True)
            b = replace(sharding, dim=1) if sharding.dim == 1 else Sharding(dim=None, is_expert=True)
            self.linear_in = Factor(place, (experts, peft.dim, inputs), a, first)
            self.linear_out = Factor(place, (experts, outputs, peft.dim), b, last)
        self._is_shared, self._place, self._sharding = peft.share_expert_adapters, place, sharding
        self._scale = peft.alpha / peft.dim

    def pair(self) -> Pair:
        """Return the matrices that this rank's part of the experts needs."""
        a: Tensor = self.linear_in.weight
        b: Tensor = self.linear_out.weight
        if not self._is_shared:
            return Pair(a, b, self._scale)
        one = replace(self._sharding, is_expert=False)
        if self._sharding.dim == 1:
            b = slice_global(b, replace(one, dim=0), _Sharers(self._place))
        else:
            a = slice_global(a, replace(one, dim=1), _Sharers(self._place))
        return Pair(a.unsqueeze(0), b.unsqueeze(0), self._scale)


class AdaptedExperts(nn.Module):
    """Takes the place of `Experts`, and holds its matrices under the same names."""

    def __init__(self, place: Place, base: Experts, peft: PEFTConfig, adapted: Sequence[str], router_topk: int) -> None:
        """`adapted` are the linears that get an adapter."""
        super().__init__()
        if peft.scheme == "dora":
            raise ConfigError(
                "peft dora adapts no experts, whose matrices are stacked: leave linear_fc1 and linear_fc2 of experts out "
                "(exclude_modules: ['*.experts.*']), or take peft lora"
            )
        if not peft.share_expert_adapters and place.etp.size > 1:
            raise ConfigError(
                f"share_expert_adapters: false needs experts whose matrices no ranks share: expert_tensor_parallel_size is "
                f"{place.etp.size} and must be 1"
            )
        if peft.dropout:
            raise ConfigError(
                f"adapters of experts have no dropout: dropout is {peft.dropout:g}; set it to 0, or leave experts out "
                "(exclude_modules: ['*.experts.*'])"
            )
        if peft.normalize_moe_lora:
            peft = replace(peft, dim=peft.dim // router_topk)
        self.linear_fc1, self.linear_fc2, self.forms = base.linear_fc1, base.linear_fc2, base.forms
        self.is_enabled = True
        """False: as if there were no adapter."""
        self._base = (base,)
        """For what runs without adapters; no second registration of its weights."""
        for name in adapted:
            grouped = self.get_submodule(name)
            assert isinstance(grouped.weight, nn.Parameter)
            grouped.adapter = ExpertLoRA(place, grouped.weight, peft)

    def forward(self, x_MH: Tensor, weights_M: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the weighted outputs [M, H] of rows that are sorted by expert, `counts[e]` for each."""
        if not self.is_enabled:
            out: Tensor = self._base[0](x_MH, weights_M, counts)
            return out
        first, last = self.linear_fc1, self.linear_fc2
        biases = None if first.bias is None or last.bias is None else (first.bias, last.bias)
        pairs = _pair_of(first), _pair_of(last)
        return adapted_expert_mlp(x_MH, weights_M, (first.weight, last.weight), pairs, counts, self.forms, biases=biases)


class _Sharers:
    """Ranks that share an expert's matrices, as those that divide a tensor."""

    def __init__(self, place: Place) -> None:
        self.tp, self.ep, self.etp = place.etp, place.ep, place.etp


def _pair_of(grouped: nn.Module) -> Pair | None:
    adapters: Mapping[str, nn.Module] = dict(grouped.named_children())
    adapter = adapters.get("adapter")
    return adapter.pair() if isinstance(adapter, ExpertLoRA) else None
