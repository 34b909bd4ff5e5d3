"""What `--dry-run` prints."""

from primus.engine.config import ConfigContainer

__all__ = ["show_plan"]


def show_plan(config: ConfigContainer, world_size: int) -> None:
    """Print the plan."""
    raise NotImplementedError
