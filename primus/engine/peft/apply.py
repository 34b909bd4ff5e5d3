"""`apply_peft` freezes a rank's chunks and puts adapters on the linears that the configuration names.

`without_adapters` runs the model as it was: the same weights serve as a policy and as its reference.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import nn

from primus.engine.config.linears import part_rows, targets
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig, value_problems
from primus.engine.model.initialise import generator_for, initialise_parameter
from primus.engine.model.moe.experts import Experts
from primus.engine.model.moe.layer import MoELayer
from primus.engine.model.moe.router import Router
from primus.engine.model.moe.token_numbers import TokenNumbers
from primus.engine.model.parameter import Place
from primus.engine.model.size import parameter_count
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import global_parameters, global_shape, sharding_of
from primus.engine.peft.adapter import Adapter, LoRA, PartsLoRA, division_of
from primus.engine.peft.experts import AdaptedExperts
from primus.engine.peft.linears import AdaptedLinear, Linear, adapted, magnitude_sharding
from primus.errors import ConfigError

__all__ = ["Sizes", "apply_peft", "sizes", "without_adapters"]

log = logging.getLogger(__name__)


def apply_peft(
    chunks: Sequence[nn.Module], peft: PEFTConfig, model: ModelConfig, *, place: Place, mesh: Mesh, seed: int
) -> None:
    """Change a rank's chunks in place; ConfigError names every value that cannot be and every entry that names nothing.

    First values are drawn as the model's are, whole and by name, so that no layout changes them.
    """
    found = targets(peft, model)
    problems = [*(why for _, why in value_problems(peft, router_topk=model.moe.router_topk)), *found.problems]
    if problems:
        raise ConfigError(problems)
    for chunk in chunks:
        chunk.requires_grad_(False)
        frozen = {name for name, _ in chunk.named_parameters()}
        for name, module in list(chunk.named_modules()):
            if isinstance(module, Router):
                # Its bias is no weight, and would move all the same.
                module.tokens_per_expert = None
            if isinstance(module, Experts):
                named = [last for last in ("linear_fc1", "linear_fc2") if f"{name}.{last}" in found.parts]
                if named:
                    _adapt_experts(chunk, name, AdaptedExperts(place, module, peft, named, model.moe.router_topk), place, seed)
            elif name in found.parts and isinstance(module, Linear):
                adapter = _adapter(place, name, module, found.parts[name], peft, model)
                _replace(chunk, name, adapted(place, module, adapter, peft))
        for name, parameter in chunk.named_parameters():
            if name not in frozen and not parameter.is_meta:
                initialise_parameter(name, parameter, seed=seed, division=mesh)


@contextmanager
def without_adapters(chunks: Iterable[nn.Module]) -> Iterator[None]:
    """Run forwards of the body as if there were no adapters."""
    parts = [m for chunk in chunks for m in chunk.modules() if isinstance(m, AdaptedLinear | AdaptedExperts)]
    for part in parts:
        part.is_enabled = False
    try:
        yield
    finally:
        for part in parts:
            part.is_enabled = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Parameters of the whole model."""

    total: int
    """With adapters."""
    trainable: int

    def __str__(self) -> str:
        """Return them in words."""
        share = 100.0 * self.trainable / self.total
        return f"{self.trainable:,d} of {self.total:,d} parameters are trained ({share:.3g} %)"


def sizes(chunks: Sequence[nn.Module], model: ModelConfig, mesh: Mesh) -> Sizes:
    """Count over the stages; all ranks call it."""
    own = sum(
        _numel(global_shape(parameter.shape, sharding_of(parameter), mesh))
        for _, parameter in global_parameters(chunks)
        if parameter.requires_grad
    )
    trainable = sum(all_gather_object(own, mesh.pp))
    return Sizes(total=parameter_count(model).total + trainable, trainable=trainable)


def _adapter(place: Place, name: str, module: Linear, parts: Sequence[str], peft: PEFTConfig, model: ModelConfig) -> Adapter:
    division = division_of(module.weight, place)
    if parts:
        return PartsLoRA(place, division, peft, part_rows(name, division.outputs, model), parts)
    magnitude = magnitude_sharding(module.weight, place) if peft.scheme == "dora" else None
    return LoRA(place, division, peft, magnitude=magnitude)


def _adapt_experts(chunk: nn.Module, name: str, experts: AdaptedExperts, place: Place, seed: int) -> None:
    _replace(chunk, name, experts)
    layer = chunk.get_submodule(name.rpartition(".")[0])
    assert isinstance(layer, MoELayer)
    if experts.drops:
        layer.token_numbers = TokenNumbers(place, name=name, seed=generator_for(seed, f"{name}/dropout").initial_seed())


def _replace(chunk: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(chunk.get_submodule(parent), last, module)


def _numel(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
