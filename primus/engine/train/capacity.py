"""Whether a device can hold a model at all, asked before anything is allocated."""

from primus.engine.config import ConfigContainer
from primus.engine.device_memory import total_bytes
from primus.engine.model.size import parameter_count
from primus.engine.parallel.mesh import Mesh
from primus.engine.precision import dtype_of
from primus.errors import InputError

__all__ = ["check_capacity"]

_TOO_MUCH = 4
"""Times the memory there is: less may be a machine that swaps, or an estimate that is off."""


def check_capacity(config: ConfigContainer, mesh: Mesh) -> None:
    """InputError if the weights that an average rank holds for good are many times its memory."""
    model, layout = config.model, mesh.layout
    size, parallel = parameter_count(model), model.parallel
    layers = (*size.layers, *size.predictions)
    tables = size.total - sum(layer.total for layer in layers)
    held = sum(layer.dense_on_rank(parallel) + layer.experts_on_rank(parallel) for layer in layers)
    held = (held + tables // layout.tensor) // layout.pipeline
    if config.ddp.shards_weights:
        held //= layout.data * layout.context
    need, memory = held * dtype_of(config.mixed_precision.params_dtype).itemsize, total_bytes(mesh.device)
    if need > _TOO_MUCH * memory:
        sizes = {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "vocab_size": model.vocab_size,
            "num_experts": model.moe.num_experts,
            "moe_ffn_hidden_size": model.moe.ffn_hidden_size,
        }
        listed = ", ".join(f"{key} {value}" for key, value in sizes.items() if value is not None)
        raise InputError(
            f"a model of {listed} has {size}: the weights of a rank take {need / 2**30:,.0f} GiB, and it has "
            f"{memory / 2**30:,.0f} GiB. Make the model smaller, or divide it over more ranks"
        )
