"""Buckets: stretches of flat memory that hold the weights and the gradients of parameters of one dtype.

Parameters lie in reverse order of registration, about the order in which a backward completes them. A bucket is reduced and
gathered as one; where state is sharded, each rank of the group owns an equal part of every bucket, whatever lies in it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from primus.engine.config import DDPConfig
from primus.engine.parallel.reduction import Reductions
from primus.engine.parallel.sharding import global_parameters, sharding_of

__all__ = ["Bucket", "Fill", "OwnedRange", "Place", "Segment", "Unit", "allocate", "free", "is_tied", "lay_out", "owned_range"]

_ALIGNMENT = 64
"""Elements; every parameter starts on a cache line and on a 128-byte boundary of any device."""

Fill = Callable[[str, nn.Parameter], None]
"""Gives a parameter of this global name its first values."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Unit:
    """Modules that run one after the other and whose weights are gathered together."""

    modules: tuple[nn.Module, ...]
    backward_reads_weights: bool = True


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one parameter that lies in an owned range."""

    name: str
    param: nn.Parameter
    start: int
    """First element within the range."""
    param_start: int
    """First element within the flattened local parameter."""
    numel: int


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A contiguous stretch of weights and gradients that this rank updates."""

    chunk: int
    """Model chunk of the parameters."""
    model: Tensor
    grad: Tensor
    segments: tuple[Segment, ...]


@dataclass(slots=True, eq=False)
class Place:
    """Where a parameter lies."""

    name: str
    param: nn.Parameter
    rank: int
    """In order of registration."""
    chunk: int
    unit: int | None
    offset: int = 0
    """Within its bucket."""

    @property
    def stop(self) -> int:
        """End within the bucket."""
        return self.offset + self.param.numel()


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters that travel together; memory is given to it by `allocate`."""

    number: int
    """In the order in which backwards complete buckets."""
    places: tuple[Place, ...]
    numel: int
    """With padding."""
    chunk: int
    """Model chunk of its parameters; the first of those that share one."""
    model: Tensor
    """Weights, flat."""
    grad: Tensor
    """Gradients, flat."""

    @property
    def is_expert(self) -> bool:
        """Whether it holds experts; no bucket mixes them with others, which other ranks share."""
        return _is_expert(self.places[0])

    @property
    def is_trained(self) -> bool:
        """Whether its weights have gradients; no bucket mixes them with frozen ones."""
        return self.places[0].param.requires_grad

    def allocate(self, device: torch.device, grad_dtype: torch.dtype, fill: Fill | None) -> None:
        """Move the parameters to flat memory; those that have none yet get their values from `fill`."""
        dtype = self.places[0].param.dtype
        self.model = torch.zeros(self.numel, dtype=dtype, device=device)
        self.grad = torch.zeros(self.numel if self.is_trained else 0, dtype=grad_dtype, device=device)
        for place in self.places:
            _move(place.param, self.view(self.model, place), partial(fill, place.name) if fill else None)

    def view(self, flat: Tensor, place: Place) -> Tensor:
        """Return a parameter's part of the bucket's weights or gradients, in its shape."""
        return flat[place.offset : place.stop].view(place.param.shape)

    def zero_gaps(self, flat: Tensor) -> None:
        """Set what lies between the parameters to zero: sums and norms go over it."""
        stops = (*(place.offset for place in self.places[1:]), self.numel)
        for place, stop in zip(self.places, stops, strict=True):
            flat[place.stop : stop].zero_()


def lay_out(
    chunks: Sequence[nn.Module],
    units: Sequence[Unit],
    config: DDPConfig,
    reductions: Reductions,
    *,
    by_unit: bool,
    with_frozen: bool,
) -> list[Bucket]:
    """Return the buckets of the parameters of a rank's chunks, without memory, in the order of their numbers.

    `by_unit` makes a bucket of each unit instead of following the configured size. Frozen parameters have buckets of their own
    `with_frozen`, behind the others; else they stay where they are.
    All ranks number buckets alike, about in order of completion, also where buckets of several dtypes mix.
    """
    unit_of = {
        param: number for number, unit in reversed(list(enumerate(units))) for m in unit.modules for param in m.parameters()
    }
    chunk_of = {param: number for number, chunk in reversed(list(enumerate(chunks))) for param in chunk.parameters()}
    kinds: defaultdict[tuple[torch.dtype, bool, bool], list[Place]] = defaultdict(list)
    for rank, (name, param) in enumerate(global_parameters(chunks)):
        if param.requires_grad or with_frozen:
            place = Place(name, param, rank, chunk_of[param], unit_of.get(param))
            kinds[param.dtype, _is_expert(place), param.requires_grad].append(place)
    cut = _at_units if by_unit else _at_size
    groups = [
        group
        for (_, is_expert, _), places in kinds.items()
        for group in cut(list(reversed(places)), config, reductions.of(is_expert=is_expert).group.size)
    ]
    groups.sort(key=lambda group: (not group[0].param.requires_grad, -min(place.rank for place in group)))
    buckets = []
    for number, group in enumerate(groups):
        step = _bucket_unit(config, reductions.of(is_expert=_is_expert(group[0])).shard_group.size)
        buckets.append(Bucket(number, tuple(group), _stack(group, step), group[0].chunk, torch.empty(0), torch.empty(0)))
    return buckets


def owned_range(bucket: Bucket, model: Tensor, grad: Tensor, index: int) -> OwnedRange:
    """Return the part number `index` of a bucket, which `model` and `grad` hold."""
    size = model.numel()
    first = index * size
    segments = []
    for place in bucket.places:
        start, stop = max(place.offset, first), min(place.stop, first + size)
        if start < stop:
            segments.append(Segment(place.name, place.param, start - first, start - place.offset, stop - start))
    return OwnedRange(bucket.chunk, model, grad, tuple(segments))


def is_tied(param: nn.Parameter) -> bool:
    """Return whether another pipeline stage holds this weight too: its bucket is its own, so that both own the same shard."""
    return sharding_of(param).tied_to is not None


def allocate(flat: Tensor) -> None:
    """Give a freed flat tensor, and all views of it, memory again; what it holds is void."""
    flat.untyped_storage().resize_(flat.numel() * flat.element_size())


def free(flat: Tensor) -> None:
    """Give the memory of a flat tensor and its views back; they keep their shapes."""
    flat.untyped_storage().resize_(0)


def _move(param: nn.Parameter, memory: Tensor, fill: Callable[[nn.Parameter], None] | None) -> None:
    """Let a parameter live in `memory` from now on."""
    if not param.is_meta:
        given, param.data = param.data, memory
        memory.copy_(given)
        return
    moved = nn.Parameter(memory.new_empty(0), requires_grad=param.requires_grad)
    moved.data = memory  # not the parameter itself: autograd would take each gather for a change of what a forward has saved
    moved.__dict__.update(param.__dict__)
    torch.utils.swap_tensors(param, moved)
    if fill is not None:
        fill(param)


def _is_expert(place: Place) -> bool:
    return sharding_of(place.param).is_expert


def _at_units(places: Sequence[Place], config: DDPConfig, ranks: int) -> Iterator[list[Place]]:
    """Cut where the unit changes."""
    return _cut(places, lambda group, following: group[-1].unit != following.unit)


def _at_size(places: Sequence[Place], config: DDPConfig, ranks: int) -> Iterator[list[Place]]:
    """Cut where the configured size is reached."""
    limit = _bucket_limit(config, ranks, sum(_round_up(place.param.numel(), _ALIGNMENT) for place in places))
    return _cut(places, lambda group, _: sum(_round_up(place.param.numel(), _ALIGNMENT) for place in group) >= limit)


def _cut(places: Sequence[Place], ends: Callable[[list[Place], Place], bool]) -> Iterator[list[Place]]:
    group = [places[0]]
    for last, following in pairwise(places):
        is_apart = is_tied(last.param) or is_tied(following.param) or last.chunk != following.chunk
        if is_apart or ends(group, following):
            yield group
            group = []
        group.append(following)
    yield group


def _stack(group: Sequence[Place], step: int) -> int:
    """Give every parameter its offset; return where the bucket ends."""
    total = 0
    for place in group:
        place.offset = total
        total = _round_up(place.stop, _ALIGNMENT)
    return _round_up(total, step)


def _bucket_limit(config: DDPConfig, ranks: int, num_elements: int) -> float:
    if not config.overlap_grad_reduce:
        return math.inf
    if config.num_buckets is not None:
        return max(1, num_elements // config.num_buckets)
    return config.bucket_size or max(40_000_000, 1_000_000 * ranks)


def _bucket_unit(config: DDPConfig, shards: int) -> int:
    if shards == 1:
        return _ALIGNMENT
    return math.lcm(shards, 128, 65536) if config.pad_buckets_for_high_nccl_busbw else math.lcm(shards, 128)


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
