"""How the model knows where a token stands."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PositionConfig"]

PositionType = Literal["learned_absolute", "rope", "yarn", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionConfig:
    """Position information: a learned table, a rotation of queries and keys, or nothing."""

    type: PositionType = "rope"
    """Scheme."""
    max_position_embeddings: int
    """Rows of the learned table; an upper bound of the sequence length for every scheme."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Share of a head's channels that is rotated."""
    rotary_interleaved: bool = False
    """Rotate neighbouring channels instead of the two halves."""
    unrotated_layers: tuple[int, ...] = ()
    """Numbers of the layers that rotate nothing."""
    temperature_scale: float = 0.0
    """Layers that rotate nothing: how fast queries grow with their position; 0: they do not."""
    temperature_floor: int = 8192
    """Positions of a step of that growth."""
    interpolation_factor: float | None = None
    """Positions are divided by it (`rotary_seq_len_interpolation_factor`)."""
    use_rope_scaling: bool = False
    """Llama-3 frequency scaling."""
    rope_scaling_factor: float = 8.0
    """Factor of the Llama-3 scaling."""
    rope_scaling_context: int = 8192
    """Llama-3 scaling: context length of the original training."""
    yarn_scaling_factor: float = 1.0
    """YaRN context extension factor (`rotary_scaling_factor`)."""
    yarn_original_max_position_embeddings: int = 4096
    """YaRN: context length of the original training."""
    yarn_beta_fast: float = 32.0
    """YaRN: rotations above which a frequency is left alone."""
    yarn_beta_slow: float = 1.0
    """YaRN: rotations below which a frequency is interpolated fully."""
    yarn_mscale: float | None = 1.0
    """YaRN attention temperature."""
    yarn_mscale_all_dim: float | None = 1.0
    """YaRN attention temperature on all dims."""
    yarn_correction_range_round_to_int: bool = True
    """YaRN: round the correction bounds to whole channels."""
