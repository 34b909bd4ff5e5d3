"""Experts with adapters: one for all experts of a layer, which every routed token meets, or one for each expert.

What all experts share is whole on every rank of a stage, and each rank has a part of its gradient: of its tokens and of its
part of the matrices. An expert's own adapter lies where the expert does. Lengths of rows (DoRA) are always an expert's own, as
its rows are: where ranks share the columns of a matrix, they add up what each knows of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from primus.engine.config.peft import PEFTConfig
from primus.engine.kernels.adapted_expert_mlp import Pair, adapted_expert_mlp
from primus.engine.kernels.row_dropout import kept
from primus.engine.kernels.split_mix import STEP, mixed
from primus.engine.model.moe.experts import Experts
from primus.engine.model.parameter import Place, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Sharding, global_shape, sharding_of, slice_global
from primus.engine.peft.adapter import Factor, initial_rule, no_values
from primus.engine.peft.linears import adapted_row_squares
from primus.errors import ConfigError

__all__ = ["AdaptedExperts", "ExpertLoRA"]


class ExpertLoRA(nn.Module):
    """The adapter of one grouped linear; `weight_magnitude` [E, out], if there is any, is the row norm that DoRA learns."""

    def __init__(self, place: Place, weight: nn.Parameter, peft: PEFTConfig) -> None:
        super().__init__()
        sharding = sharding_of(weight)
        experts, outputs, inputs = global_shape(weight.shape, sharding, place)
        first, last = initial_rule(peft.lora_A_init_method), initial_rule(peft.lora_B_init_method)
        rows = replace(sharding, dim=1) if sharding.dim == 1 else Sharding(dim=None, is_expert=True)
        if peft.share_expert_adapters:
            a = b = Sharding(dim=None, sequence_parallel_grad=place.tp.size > 1)
            self.linear_in = Factor(place, (peft.dim, inputs), a, first)
            self.linear_out = Factor(place, (outputs, peft.dim), b, last)
        else:
            a = Sharding(dim=2 if sharding.dim == 2 else None, is_expert=True)
            self.linear_in = Factor(place, (experts, peft.dim, inputs), a, first)
            self.linear_out = Factor(place, (experts, outputs, peft.dim), rows, last)
        self.has_magnitude = peft.scheme == "dora"
        if self.has_magnitude:
            wide = torch.promote_types(place.dtype, torch.float32)
            self.weight_magnitude = declare(place, (experts, outputs), rows, no_values, dtype=wide)
        self._is_shared, self._place, self._sharding = peft.share_expert_adapters, place, sharding
        self._scale, self._peft, self._sizes = peft.alpha / peft.dim, peft, (outputs, inputs)

    def pair(self, weight: Tensor, numbers_M: Tensor | None) -> Pair:
        """Return what this rank's part `weight` of the experts needs; rows with numbers drop values."""
        a: Tensor = self.linear_in.weight
        b: Tensor = self.linear_out.weight
        if self._is_shared:
            if self._sharding.dim == 1:
                b = self._own_part(b, dim=0)
            else:
                a = self._own_part(a, dim=1)
            a, b = a.unsqueeze(0), b.unsqueeze(0)
        pair = Pair(a, b, self._scale)
        if self.has_magnitude:
            pair = replace(pair, factors=self._factors(weight, a, b))
        return pair if numbers_M is None else self._dropping(pair, numbers_M)

    def _factors(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return m/n [E, out]."""
        magnitude: Tensor = self.weight_magnitude
        with torch.no_grad():
            squares = adapted_row_squares(weight, a, b, self._scale)
            if self._sharding.dim == 2:
                squares = self._among_sharers(squares, collectives.all_reduce_)
        if self._sharding.dim == 2:
            # Each of them has a part of the sums that these multiply, and so of their gradient.
            magnitude = self._among_sharers(magnitude, collectives.copy_to_group)
        return magnitude / squares.sqrt()

    def _among_sharers(self, own: Tensor, act: Callable[[Tensor, Group], Tensor]) -> Tensor:
        """Let the ranks that share this one's experts act on what each has of them.

        The group is that of all experts: to those of others a rank adds nothing.
        """
        ep, group = self._place.ep, self._place.etp_ep
        if self._place.etp.size == 1:
            return own
        first, count = ep.index * len(own), ep.size * len(own)
        everyones = nn.functional.pad(own, (0, 0, first, count - first - len(own)))
        return act(everyones, group)[first : first + len(own)]

    def _dropping(self, pair: Pair, numbers_M: Tensor) -> Pair:
        outputs, inputs = self._sizes
        drops_result = self._peft.dropout_position == "post"
        columns = torch.arange(outputs if drops_result else inputs, device=numbers_M.device)
        if (self._sharding.dim == 1) == drops_result:
            columns = self._own_part(columns, dim=0)
        share = self._peft.dropout
        return replace(pair, kept=kept(numbers_M, columns, share), probability=share, drops_result=drops_result)

    def _own_part(self, whole: Tensor, *, dim: int) -> Tensor:
        """Return what this rank has along the dim that sharers of an expert divide."""
        return slice_global(whole, replace(self._sharding, is_expert=False, dim=dim), _Sharers(self._place))


class AdaptedExperts(nn.Module):
    """Takes the place of `Experts`, and holds its matrices under the same names."""

    def __init__(self, place: Place, base: Experts, peft: PEFTConfig, adapted: Sequence[str], router_topk: int) -> None:
        """`adapted` are the linears that get an adapter."""
        super().__init__()
        if not peft.share_expert_adapters and place.etp.size > 1:
            raise ConfigError(
                f"share_expert_adapters: false needs experts whose matrices no ranks share: expert_tensor_parallel_size is "
                f"{place.etp.size} and must be 1"
            )
        if peft.normalize_moe_lora:
            peft = replace(peft, dim=peft.dim // router_topk)
        self.linear_fc1, self.linear_fc2, self.forms = base.linear_fc1, base.linear_fc2, base.forms
        self.is_enabled = True
        """False: as if there were no adapter."""
        self.drops = peft.dropout > 0.0
        """Training tells it which tokens its rows are."""
        self._first_expert = place.ep.index * len(base.linear_fc1.weight)
        self._base = (base,)
        """For what runs without adapters; no second registration of its weights."""
        for name in adapted:
            grouped = self.get_submodule(name)
            assert isinstance(grouped.weight, nn.Parameter)
            grouped.adapter = ExpertLoRA(place, grouped.weight, peft)

    def forward(self, x_MH: Tensor, weights_M: Tensor, counts: Sequence[int], tokens_M: Tensor | None = None) -> Tensor:
        """Return the weighted outputs [M, H] of rows that are sorted by expert, `counts[e]` for each.

        Rows drop values if it is known by numbers of which tokens they are.
        """
        if not self.is_enabled:
            out: Tensor = self._base[0](x_MH, weights_M, counts)
            return out
        first, last = self.linear_fc1, self.linear_fc2
        biases = None if first.bias is None or last.bias is None else (first.bias, last.bias)
        pairs = self._pair(first, 0, tokens_M, counts), self._pair(last, 1, tokens_M, counts)
        return adapted_expert_mlp(x_MH, weights_M, (first.weight, last.weight), pairs, counts, self.forms, biases=biases)

    def _pair(self, grouped: nn.Module, place: int, tokens_M: Tensor | None, counts: Sequence[int]) -> Pair | None:
        """Return the adapter of a linear, the first or the second one."""
        adapters: Mapping[str, nn.Module] = dict(grouped.named_children())
        adapter = adapters.get("adapter")
        if not isinstance(adapter, ExpertLoRA):
            return None
        assert isinstance(grouped.weight, nn.Parameter)
        if tokens_M is None:
            return adapter.pair(grouped.weight, None)
        experts = torch.arange(self._first_expert, self._first_expert + len(counts), device=tokens_M.device)
        rows = torch.tensor(counts, device=tokens_M.device)
        experts_M = experts.repeat_interleave(rows, output_size=len(tokens_M))
        return adapter.pair(grouped.weight, mixed(tokens_M + (2 * experts_M + place + 1) * STEP))


class _Sharers:
    """Ranks that share an expert's matrices, as those that divide a tensor."""

    def __init__(self, place: Place) -> None:
        self.tp, self.ep, self.etp = place.etp, place.ep, place.etp
