"""How many processes to start, and where the nodes of a run meet: the launch options of the command line."""

from dataclasses import dataclass

__all__ = ["LaunchOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """What the user asked for; None: not asked, the default or the launcher's environment decides."""

    nproc_per_node: int | None = None
    """Processes on this machine."""
    nnodes: int | None = None
    """Machines."""
    node_rank: int | None = None
    """This machine's number, with `master_addr` and `master_port`."""
    master_addr: str | None = None
    """Host of the machine with number 0."""
    master_port: int | None = None
    """Its port."""
    rdzv_endpoint: str | None = None
    """HOST:PORT where unnumbered machines meet."""

    @property
    def given(self) -> list[str]:
        """Return the options that were given, as the user writes them."""
        return [f"--{name.replace('_', '-')}" for name in self.__slots__ if getattr(self, name) is not None]
