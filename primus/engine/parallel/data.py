"""`GradientBuffers`: weights and gradients of a rank's chunks in flat memory, and their exchange with data-parallel ranks.

How much of it a rank holds for good is configuration: everything, a shard of the optimizer state (ZeRO 1), of the gradients too
(ZeRO 2), or of the weights as well (ZeRO 3). Who computes and who updates does not see the difference.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from primus.engine.config import DDPConfig
from primus.engine.parallel.buckets import Bucket, Fill, OwnedRange, Unit, is_tied, lay_out, owned_range
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.deferred import DeferredProducts, PostponedProducts
from primus.engine.parallel.gradients import ShardedGradients, Watcher, WholeGradients
from primus.engine.parallel.mesh import Group, Mesh
from primus.engine.parallel.partial import PartialGradients
from primus.engine.parallel.reduction import Reduction, Reductions
from primus.engine.parallel.sharding import Shards, flat_range_shards, global_parameters, join, sharding_of, weight_shards
from primus.engine.parallel.slot import GradientSlot
from primus.engine.parallel.weights import ShardedWeights, WholeWeights

__all__ = ["GradientBuffers"]


class GradientBuffers:
    """The gradients of a model: accumulation, reduction, and the ranges this rank updates."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: DDPConfig,
        mesh: Mesh,
        *,
        grad_dtype: torch.dtype,
        per_token: bool,
        units: Sequence[Sequence[Unit]] = (),
        fill: Fill | None = None,
    ) -> None:
        """Move the parameters of a rank's model chunks into flat memory.

        `per_token`: sum gradients over ranks instead of averaging them. `units` are what each chunk runs one after the other;
        who shards gradients or weights needs them. `fill` gives parameters on the meta device their values.
        """
        self._mesh, self._chunks = mesh, tuple(chunks)
        self._reductions = _reductions(config, mesh, per_token)
        self.shard_group, self.expert_shard_group = self._reductions.dense.shard_group, self._reductions.expert.shard_group
        """Ranks that share the optimizer state; groups of one without the distributed optimizer."""
        divides = self._reductions.are_divided
        self._deferred = DeferredProducts()
        self._postponed: list[PostponedProducts] = []
        self._gradients = self._gather_gradients(config, is_sharded=divides and config.shards_gradients)
        self._weights: WholeWeights | ShardedWeights = (
            ShardedWeights(overlaps=config.overlap_param_gather, ahead=config.suggested_communication_unit_size)
            if divides and config.shards_weights
            else WholeWeights(overlaps=config.overlap_param_gather, waits_for_start=config.align_param_gather)
        )
        self._slots: dict[nn.Parameter, GradientSlot] = {}
        self._buckets = lay_out(
            chunks,
            [unit for chunk in units for unit in chunk],
            config,
            self._reductions,
            by_unit=divides and config.shards_gradients,
            # Whole frozen weights have no reason to move: nobody reduces, updates or gathers them.
            with_frozen=isinstance(self._weights, ShardedWeights) or any(p.is_meta for c in chunks for p in c.parameters()),
        )
        for bucket in self._buckets:
            self._adopt(bucket, grad_dtype, fill)
        self._trained = [bucket for bucket in self._buckets if bucket.is_trained]
        self._partial_grads = PartialGradients(self.ranges(), mesh.tp)
        if isinstance(self._weights, ShardedWeights):
            self._weights.watch(units)
        else:
            self._weights.watch(module for chunk in chunks for module in chunk.modules())

    def ranges(self) -> list[OwnedRange]:
        """Return what this rank updates: every bucket, or its shard of it."""
        return [
            owned_range(bucket, self._weights.owned(bucket), self._gradients.owned(bucket), self._shard_group(bucket).index)
            for bucket in self._trained
        ]

    def weight_shards(self) -> dict[str, Shards]:
        """Return the rectangles of every parameter that this rank holds for good, under global names."""
        is_whole = isinstance(self._weights, WholeWeights)
        flat = {place.param for bucket in self._buckets for place in bucket.places}
        held = ((name, param) for name, param in global_parameters(self._chunks) if is_whole or param not in flat)
        shards = weight_shards(held, self._mesh)
        if is_whole:
            return shards
        for bucket in self._buckets:
            own = self._weights.owned(bucket)
            for segment in owned_range(bucket, own, bucket.grad, self._shard_group(bucket).index).segments:
                values, shape = own[segment.start : segment.start + segment.numel], segment.param.shape
                part = flat_range_shards(values, segment.param_start, shape, sharding_of(segment.param), self._mesh)
                shards[segment.name] = join(shards.get(segment.name), part)
        return shards

    def watch(self, watcher: Watcher) -> None:
        """Show this rank's own gradients of each bucket to `watcher` right before they are reduced."""
        self._gradients.watcher = watcher

    def zero_grad(self) -> None:
        """Start a step: forget all gradients."""
        self._gradients.begin()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within only accumulate; the last one of a step runs outside and lets buckets leave."""
        self._gradients.is_last = False
        try:
            yield
        finally:
            self._gradients.is_last = True
        self._weights.end_backward()
        if self._deferred.is_empty:
            self._gradients.end_backward()

    def deferring(self, key: object) -> AbstractContextManager[None]:
        """Backwards within set the weight gradients of linears aside under `key`."""
        return self._deferred.keeping(key)

    def compute_deferred(self, key: object) -> None:
        """Add what was set aside under `key`."""
        self._deferred.compute(key)
        self._gradients.end_backward()

    def postpone(self, weight: nn.Parameter, *, limit: int) -> None:
        """Let the first `limit` gradients of a weight wait until a step's backwards are through; 0: all of them."""
        self._postponed.append(PostponedProducts(limit, self._deferred))
        self._slots[weight].postpone(self._postponed[-1])

    def compute_postponed(self) -> None:
        """Add what was set aside by `postpone`."""
        for products in self._postponed:
            products.compute()

    def finish_grad_sync(self) -> None:
        """Complete the step's gradients: reduce over data-parallel ranks, then sum what tensor-parallel ranks hold in parts
        and what pipeline stages hold of one weight."""
        assert self._deferred.is_empty, "weight gradients were set aside and never computed"
        self._weights.finish()
        self._weights.end_backward()
        self._gradients.reduce()
        self._partial_grads.sum_()
        for bucket in self._buckets:
            if bucket.is_trained and is_tied(bucket.places[0].param):
                all_reduce_(self._gradients.owned(bucket), self._mesh.embd)

    def release(self, chunk: int) -> None:
        """Let the reduction of a chunk's complete gradients begin, where `align_grad_reduce` holds it back."""
        self._gradients.release(chunk)

    def gather_params(self, chunks: Collection[int] | None = None) -> None:
        """Give every rank the updated weights of some chunks (None: all), or let it fetch them when it needs them."""
        self._weights.updated(range(len(self._chunks)) if chunks is None else chunks)

    def gather_ahead(self, chunk: int) -> None:
        """Start to gather a chunk's weights, where `align_param_gather` waits for that."""
        self._weights.start(chunk)

    def finish_param_gather(self) -> None:
        """Wait until weights that are held whole are whole; anyone who reads them outside a forward calls this first."""
        self._weights.finish()

    def _gather_gradients(self, config: DDPConfig, *, is_sharded: bool) -> WholeGradients | ShardedGradients:
        if is_sharded:
            return ShardedGradients(self._reductions, lambda: self._deferred.is_open)
        return WholeGradients(self._reductions, waits_for_release=config.align_grad_reduce and self._mesh.pp.size > 1)

    def _shard_group(self, bucket: Bucket) -> Group:
        return self._reductions.of(is_expert=bucket.is_expert).shard_group

    def _adopt(self, bucket: Bucket, grad_dtype: torch.dtype, fill: Fill | None) -> None:
        """Give a bucket memory and its parameters their slots."""
        bucket.allocate(self._mesh.device, grad_dtype, fill)
        self._weights.adopt(bucket, self._shard_group(bucket))
        if not bucket.is_trained:
            return
        for place in bucket.places:
            slot = GradientSlot(place.name, bucket.view(bucket.grad, place), self._gradients, self._deferred)
            self._slots[place.param] = place.param.grad_slot = slot  # type: ignore[attr-defined]
            place.param.register_post_accumulate_grad_hook(self._on_grad)
        self._gradients.adopt(bucket, self._slots)

    def _on_grad(self, param: Tensor) -> None:
        """Move what autograd has accumulated into the flat gradients; nothing, if all of it went to the slot directly."""
        assert isinstance(param, nn.Parameter)
        if param.grad is None:
            return
        self._slots[param].add_(param.grad)
        param.grad = None


def _reductions(config: DDPConfig, mesh: Mesh, per_token: bool) -> Reductions:
    alone = Group((mesh.rank,), 0)
    divides = config.use_distributed_optimizer
    shards = mesh.intra_dp_cp if divides else alone, mesh.intra_expt_dp if divides else alone
    is_sharded = config.shards_gradients and any(group.size > 1 for group in shards)

    def kind(group: Group, shard_group: Group, inter_group: Group) -> Reduction:
        return Reduction(
            group=group,
            shard_group=shard_group,
            inter_group=inter_group,
            divisor=1 if per_token else mesh.dp_cp.size,
            divides_after=config.average_in_collective or (is_sharded and config.gradient_reduce_div_fusion),
            overlaps=config.overlap_grad_reduce,
        )

    return Reductions(
        dense=kind(mesh.dp_cp, shards[0], mesh.inter_dp_cp), expert=kind(mesh.expt_dp, shards[1], mesh.inter_expt_dp)
    )
