"""`FullyShardedDataParallel`: weights and gradients divided by torch's own `fully_shard` (`use_torch_fsdp2`).

A unit of the model (embedding, each layer, final norm with output) is one group of `fully_shard`: its parameters are DTensors
of which a rank holds some rows, whole weights exist while it runs, and gradients are reduced in every microbatch.

F(G0) F(G1) | B(G1 R1) B(G0 R0)      ZeRO 3 (arXiv 1910.02054), FSDP (arXiv 2304.11277)

Ours are three things. Gradients are added up over microbatches in the dtype of the reduction, where torch would round each sum
to the dtype of the weights. The mean is taken there, as gloo cannot average. And collectives are those of `collectives.py`.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from primus.engine.parallel.buckets import Fill, OwnedRange, Segment, Unit
from primus.engine.parallel.collectives import own_part, start_all_gather_, start_reduce_scatter_, wait
from primus.engine.parallel.gradients import Watcher
from primus.engine.parallel.mesh import Group, Mesh
from primus.engine.parallel.partial import PartialGradients
from primus.engine.parallel.sharding import Shards, flat_range_shards, global_parameters, sharding_of
from primus.errors import InputError

__all__ = ["FullyShardedDataParallel"]


class FullyShardedDataParallel:
    """A rank's rows of all weights and gradients; torch gathers and reduces them unit by unit."""

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[Unit],
        mesh: Mesh,
        *,
        grad_dtype: torch.dtype,
        per_token: bool,
        fill: Fill | None = None,
    ) -> None:
        """Divide the parameters of a model over `intra_dp_cp`, which has more than one rank; each lies in one of the units.

        InputError if those of a unit have several dtypes, or there is no device.

        Ranks of `inter_dp_cp` hold the same rows. `per_token`: sum gradients over ranks instead of averaging them. `fill` gives
        parameters on the meta device their values; no more than a unit is ever whole.
        """
        if mesh.device.type == "meta":
            raise InputError(
                "use_torch_fsdp2 cannot be rehearsed: torch's sharding asks for a device that is there. use_megatron_fsdp: "
                "true with data_parallel_sharding_strategy: optim_grads_params divides alike and can be."
            )
        for unit in units:
            _check_dtypes(unit)
        self.shard_group = self.expert_shard_group = mesh.intra_dp_cp
        self._mesh, self._grad_dtype = mesh, grad_dtype
        self._watcher: Watcher | None = None
        self._factor = 1.0 if per_token else 1.0 / mesh.dp_cp.size
        self._rows: list[_Rows] = []
        device_mesh = _device_mesh(mesh)
        heads = [cast(FSDPModule, unit.modules[0]) for unit in units]
        for number, unit in enumerate(units):
            declared = _declarations(model, unit, mesh.device, fill)
            policy = MixedPrecisionPolicy(reduce_dtype=grad_dtype, cast_forward_inputs=False)
            fully_shard(list(unit.modules), mesh=device_mesh, mp_policy=policy, reshard_after_forward=True)
            divided = {name: param for name, param in global_parameters([model]) if name in declared}
            for name, param in divided.items():
                param.__dict__.update(declared[name])
            self._adopt(number, heads[number], divided)
        assert len(self._rows) == sum(1 for _ in model.parameters()), "each parameter must lie in one unit"
        fully_shard(model, mesh=device_mesh)
        for head, following in pairwise(heads):
            head.set_modules_to_forward_prefetch([following])
        self._partial_grads = PartialGradients(self.ranges(), mesh.tp)

    def ranges(self) -> list[OwnedRange]:
        """Return this rank's rows of each parameter that is trained; of small ones it may have none."""
        return [rows.range() for rows in self._rows if rows.param.requires_grad and rows.data.numel()]

    def weight_shards(self) -> dict[str, Shards]:
        """Return this rank's rows, under global names."""
        return {
            rows.name: flat_range_shards(rows.data, rows.first, rows.param.shape, sharding_of(rows.param), self._mesh)
            for rows in self._rows
            if rows.data.numel()
        }

    def watch(self, watcher: Watcher) -> None:
        """Show this rank's own gradients of each unit to `watcher` right before they are reduced, in every microbatch."""
        self._watcher = watcher

    def zero_grad(self) -> None:
        """Start a step: forget all gradients."""
        for rows in self._rows:
            rows.grad.zero_()

    def no_sync(self) -> AbstractContextManager[None]:
        """Nothing: gradients are reduced in every microbatch, so that no rank keeps whole ones."""
        return nullcontext()

    def deferring(self, key: Any) -> AbstractContextManager[None]:
        """Nothing: autograd computes weight gradients in the backward itself."""
        return nullcontext()

    def compute_deferred(self, key: Any) -> None:
        """Nothing is set aside."""

    def compute_postponed(self) -> None:
        """Nothing is set aside."""

    def release(self, chunk: int) -> None:
        """Nothing: units are reduced as they come."""

    def finish_grad_sync(self) -> None:
        """Sum what tensor-parallel ranks hold in parts; all else was reduced in the backwards."""
        self._partial_grads.sum_()

    def gather_params(self, chunks: Collection[int] | None = None) -> None:
        """Nothing: a unit is gathered when it runs."""

    def gather_ahead(self, chunk: int) -> None:
        """Nothing: a unit is gathered when it runs."""

    def finish_param_gather(self) -> None:
        """Nothing: no rank holds all weights."""

    def _adopt(self, number: int, head: FSDPModule, parameters: Mapping[str, nn.Parameter]) -> None:
        """Take in a unit that was divided."""
        arrival = _Arrival(self._factor)
        for name, param in parameters.items():
            rows = _Rows(name, param, self.shard_group, self._grad_dtype)
            self._rows.append(rows)
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(partial(arrival.take, rows))
        head.set_gradient_divide_factor(1.0)
        head.set_force_sum_reduction_for_comms(True)
        head.set_all_reduce_hook(arrival.begin)
        head.set_custom_all_gather(cast(Any, _AllGather(self.shard_group)))
        head.set_custom_reduce_scatter(cast(Any, _ReduceScatter(self.shard_group, partial(self._look, number))))

    def _look(self, number: int, own: Tensor) -> None:
        if self._watcher is not None:
            self._watcher(number, own)


class _Rows:
    """This rank's rows of a parameter, and their gradients if it has any."""

    def __init__(self, name: str, param: nn.Parameter, group: Group, grad_dtype: torch.dtype) -> None:
        """`param` is a DTensor: rows are dealt out in equal stretches, so that the last ranks may have fewer, or none."""
        self.name, self.param = name, param
        self.data = cast(DTensor, param.detach()).to_local().view(-1)
        """Flat, in the memory that torch gathers from."""
        self.grad = torch.zeros_like(self.data if param.requires_grad else self.data[:0], dtype=grad_dtype)
        self.stretch = -(-param.shape[0] // group.size) * math.prod(param.shape[1:])
        """Elements of the rows of a rank that has as many as any."""
        self.first = group.index * self.stretch
        """First element within the flattened local parameter."""

    def range(self) -> OwnedRange:
        """Return them as something to update."""
        segment = Segment(self.name, self.param, 0, self.first, self.data.numel())
        return OwnedRange(chunk=0, model=self.data, grad=self.grad, segments=(segment,))


class _Arrival:
    """Takes a unit's reduced gradients where torch has them in the dtype of the reduction.

    torch first hands over the flat sum (the all-reduce hook, with one instance too), then names the parameters in the order in
    which they lie there (their post-accumulate hooks), each with the space of a full stretch of rows.
    """

    def __init__(self, factor: float) -> None:
        """What arrives is multiplied by `factor`."""
        self._factor = factor
        self._flat: Tensor | None = None
        self._offset = 0

    def begin(self, flat: Tensor) -> None:
        """Take the sum of all parameters."""
        self._flat, self._offset = flat, 0
        if flat.device.type != "cpu":
            # Memory of another stream; torch keeps it in use by the gradients that `take` removes.
            flat.record_stream(torch.accelerator.current_stream())

    def take(self, rows: _Rows, param: Tensor) -> None:
        """Add the next parameter's part to its gradient."""
        assert self._flat is not None
        rows.grad.add_(self._flat[self._offset : self._offset + rows.grad.numel()], alpha=self._factor)
        param.grad = None
        self._offset += rows.stretch
        if self._offset == self._flat.numel():
            self._flat = None


class _Allocation:
    """Memory for collectives, as torch asks for it."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return void memory."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Allocation):
    """How a unit's weights are gathered (`set_custom_all_gather`)."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False) -> None:
        """Fill `output_tensor`, of which `input_tensor` is the own part; the current stream waits for it."""
        wait(start_all_gather_(output_tensor, self._group))


class _ReduceScatter(_Allocation):
    """How a unit's gradients are summed (`set_custom_reduce_scatter`)."""

    def __init__(self, group: Group, look: Callable[[Tensor], None]) -> None:
        """`look` is shown what this rank adds."""
        self._group, self._look = group, look

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: object, op: object, async_op: bool = False) -> None:
        """Put the own part of the sum into `output_tensor`; the current stream waits for it."""
        self._look(input_tensor)
        wait(start_reduce_scatter_(input_tensor, self._group))
        output_tensor.copy_(own_part(input_tensor, self._group))


def _device_mesh(mesh: Mesh) -> DeviceMesh:
    """Return the ranks that divide the model, or a row of them for each instance."""
    shards, replicas = mesh.intra_dp_cp, mesh.inter_dp_cp
    assert shards.handle is not None, "one rank has nothing to divide"
    if replicas.handle is None:
        return DeviceMesh.from_group(shards.handle, mesh.device.type)
    ranks = torch.tensor(mesh.dp_cp.ranks).view(replicas.size, shards.size)
    names = ("replicate", "shard")
    return DeviceMesh.from_group([replicas.handle, shards.handle], mesh.device.type, mesh=ranks, mesh_dim_names=names)


def _check_dtypes(unit: Unit) -> None:
    named = {name: param.dtype for module in unit.modules for name, param in module.named_parameters()}
    if len(set(named.values())) > 1:
        usual = Counter(named.values()).most_common(1)[0][0]
        other = next(name for name, dtype in named.items() if dtype != usual)
        raise InputError(
            f"use_torch_fsdp2: fully_shard gathers the weights of a layer in one dtype; most are {usual}, and {other} is "
            f"{named[other]}. use_megatron_fsdp: true with data_parallel_sharding_strategy: optim_grads_params divides both"
        )


def _declarations(model: nn.Module, unit: Unit, device: torch.device, fill: Fill | None) -> dict[str, dict[str, Any]]:
    """Return what the parameters of a unit were declared with, which the DTensors in their place are to be given.

    Parameters on the meta device get memory, and values if there is `fill`. None is referred to: whole ones are to go.
    """
    members = {param for module in unit.modules for param in module.parameters()}
    named = {name: param for name, param in global_parameters([model]) if param in members}
    for name, param in named.items():
        if param.is_meta:
            given = nn.Parameter(torch.zeros_like(param, device=device), requires_grad=param.requires_grad)
            given.__dict__.update(param.__dict__)
            torch.utils.swap_tensors(param, given)
            if fill is not None:
                fill(name, param)
    return {name: param.__dict__ for name, param in named.items()}
