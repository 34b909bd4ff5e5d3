"""`Model`: what a released model looks like, as flat Megatron keys.

A shape stands once, in the presets of `framework: megatron`. Those hold what a family's reference trainer trains; recipes start
from released weights, so a model adds what these need besides.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron.model_preset import model_keys
from primus.core.experiment.extends import CONFIGS, NamedFile, Reading, read_with_extends
from primus.core.experiment.value import plain
from primus.engine.checkpoint.hf.read import CONFIG, model_in

__all__ = ["Model", "Shape", "architecture_in"]

_CHAPTERS = ("10.1", "10.3", "10.5", "10.6", "10.7", "14.1", "14.2", "14.3")
_OF_MODULES = ("use_sink_attention",)
_OF_TRAINING = (
    "encoder_num_layers",
    "disable_primus_topk_router",
    "moe_router_force_load_balancing_type",
    "moe_use_upcycling",
    "apply_wd_to_qk_layernorm",
)
_OF_WEIGHTS = (
    "norm_epsilon",
    "max_position_embeddings",
    "rotary_base",
    "rotary_seq_len_interpolation_factor",
    "use_rope_scaling",
    "rope_scaling_factor",
    "original_max_position_embeddings",
    "rotary_scaling_factor",
    "mscale",
    "mscale_all_dim",
)
"""Numbers that releases of one shape have different ones of, base and instruct models among them."""


class Shape(Protocol):
    """Where a recipe takes its model from."""

    @property
    def hf_path(self) -> str | None:
        """Weights and tokenizer unless the user names others."""

    @property
    def tokenizer(self) -> str | None:
        """The tokenizer, if weights are none that this engine reads."""

    def architecture(self, hf_path: str | None) -> dict[str, Any]:
        """Return flat Megatron keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A released model."""

    preset: str
    """File among `primus/configs/models/megatron`, without its ending."""
    vocab_size: int
    """Rows of the embedding."""
    hf_path: str | None = None
    """Its name on the hub; None: it has no weights there that this engine reads."""
    tokenizer: str | None = None
    """The name of its tokenizer, if that of its weights is None."""
    released: Mapping[str, Any] = field(default_factory=dict)
    """Keys in which the released weights differ from the preset."""

    def architecture(self, hf_path: str | None) -> dict[str, Any]:
        """Return the keys of the model; a folder of weights says the numbers that a shape leaves open."""
        file = NamedFile(CONFIGS / "models/megatron" / f"{self.preset}.yaml", self.preset)
        preset = plain(read_with_extends(file, Reading({})))
        keys = {key: preset[key] for key in _architecture_keys() if key in preset}
        keys |= {**self.released, "vocab_size": self.vocab_size}
        folder = Path(hf_path).expanduser() if hf_path else None
        if folder is not None and (folder / CONFIG).is_file():
            theirs = architecture_in(folder)
            keys |= {key: theirs[key] for key in _OF_WEIGHTS if key in theirs}
        return keys


def architecture_in(folder: Path) -> dict[str, Any]:
    """Return the keys of the model in a Hugging Face folder; InputError if it is none of this engine's."""
    return model_keys(model_in(folder)[1])


def _architecture_keys() -> Iterator[str]:
    for key in KEYS.values():
        if key.status == "live" and (key.section in _CHAPTERS or key.name in _OF_MODULES) and key.name not in _OF_TRAINING:
            yield key.name
