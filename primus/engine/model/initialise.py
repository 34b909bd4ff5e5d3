"""First values that do not know the layout.

Each parameter is drawn whole, in fp32 on the host, from a generator seeded by (seed, its name), then cast and sliced: the same
seed starts every layout, dtype and device from the same weights. Rows that only pad the vocabulary start at zero and are
not drawn, because their number depends on the layout.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from primus.engine.model.parameter import initial_of
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import global_parameters, sharding_of, slice_global

__all__ = ["generator_for", "initialise", "initialise_parameter", "zero_padding"]


def initialise(chunks: Iterable[nn.Module], *, seed: int, tp: Group) -> None:
    """Fill every parameter of a rank's chunks; a tied parameter is drawn once, under its first name."""
    for name, parameter in global_parameters(chunks):
        initialise_parameter(name, parameter, seed=seed, tp=tp)


@torch.no_grad()
def initialise_parameter(name: str, parameter: nn.Parameter, *, seed: int, tp: Group) -> None:
    """Fill the rank's slice of the parameter that has this name in the whole model."""
    whole = _draw(name, parameter, seed, tp)
    parameter.copy_(slice_global(whole.to(parameter.dtype), sharding_of(parameter), tp))


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


def _draw(name: str, parameter: nn.Parameter, seed: int, tp: Group) -> Tensor:
    sharding = sharding_of(parameter)
    shape = list(parameter.shape)
    if sharding.dim is not None:
        shape[sharding.dim] *= tp.size
    whole = torch.zeros(shape, dtype=torch.float32)
    initial_of(parameter)(whole[: sharding.valid_rows], generator_for(seed, name))
    return whole
