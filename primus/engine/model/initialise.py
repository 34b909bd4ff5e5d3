"""First values that do not know the layout.

Each parameter is drawn whole, in fp32 on the host, from a generator seeded by (seed, its name), then cast and sliced: the same
seed starts every layout, dtype and device from the same weights. Rows that only pad the vocabulary start at zero and are
not drawn, because their number depends on the layout. Experts are drawn one by one, each from its own generator.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from primus.engine.model.parameter import Initial, initial_of
from primus.engine.parallel.mesh import Group, Part
from primus.engine.parallel.sharding import Division, Sharding, global_parameters, global_shape, sharding_of, slice_global

__all__ = ["generator_for", "initialise", "initialise_parameter", "zero_padding"]


def initialise(chunks: Iterable[nn.Module], *, seed: int, division: Division) -> None:
    """Fill every parameter of a rank's chunks; a tied parameter is drawn once, under its first name."""
    for name, parameter in global_parameters(chunks):
        initialise_parameter(name, parameter, seed=seed, division=division)


@torch.no_grad()
def initialise_parameter(name: str, parameter: nn.Parameter, *, seed: int, division: Division) -> None:
    """Fill the rank's slice of the parameter that has this name in the whole model."""
    sharding, initial = sharding_of(parameter), initial_of(parameter)
    if not sharding.is_expert:
        parameter.copy_(_draw(parameter, initial, sharding, generator_for(seed, name), division))
        return
    one = replace(sharding, is_expert=False, dim=None if sharding.dim is None else sharding.dim - 1)
    for number, expert in enumerate(parameter, start=division.ep.index * len(parameter)):
        expert.copy_(_draw(expert, initial, one, generator_for(seed, f"{name}/{number}"), _OneExpert(tp=division.etp)))


@torch.no_grad()
def zero_padding(chunks: Iterable[nn.Module], *, tp: Group) -> None:
    """Set the rows that only pad the vocabulary to zero, where nothing else is filled: no checkpoint has values for them."""
    for _, parameter in global_parameters(chunks):
        valid = sharding_of(parameter).valid_rows
        if valid is not None:
            parameter[max(0, valid - tp.index * len(parameter)) :].zero_()


def generator_for(seed: int, name: str) -> torch.Generator:
    """Return a generator that depends on nothing but the seed and the name."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class _OneExpert(NamedTuple):
    """How ranks share an expert."""

    tp: Part | Group
    ep: Part = Part(0, 1)
    etp: Part = Part(0, 1)


def _draw(local: Tensor, initial: Initial, sharding: Sharding, generator: torch.Generator, division: Division) -> Tensor:
    """Return the values of this rank's part `local`."""
    whole = torch.zeros(global_shape(local.shape, replace(sharding, valid_rows=None), division), dtype=torch.float32)
    initial(whole[: sharding.valid_rows], generator)
    return slice_global(whole.to(local.dtype), sharding, division)
