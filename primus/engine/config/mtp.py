"""Prediction of tokens further ahead."""

from dataclasses import dataclass

__all__ = ["MTPConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MTPConfig:
    """Multi-token prediction (arXiv 2412.19437, 2.2): layers behind the last one, each for one token further ahead."""

    num_layers: int = 0
    """Such layers."""
    loss_scaling_factor: float = 0.1
    """Weight of the mean of their losses."""
