"""The library and the settings with which a kind of group communicates, as `dist.new_group` takes them.

`communicator_of` is the name to use. A CPU has gloo and nothing to set; what such a run does not heed, `without_effect` says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from primus.engine.config import CommunicatorConfig, DistConfig, GroupName
from primus.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroupNCCL

__all__ = ["Communicator", "communicator_of", "nccl_options", "without_effect"]

_SETTINGS = ("min_ctas", "max_ctas", "cga_cluster_size", "net_name")


@dataclass(frozen=True, slots=True)
class Communicator:
    """What distinguishes groups of the same ranks."""

    backend: str | None = None
    """None: the world's."""
    settings: CommunicatorConfig | None = None
    """Of NCCL; None: its own choices."""

    def arguments(self, timeout: timedelta) -> dict[str, Any]:
        """Return what `dist.new_group` needs beside the ranks."""
        chosen: dict[str, Any] = {"timeout": timeout}
        if self.backend is not None:
            chosen["backend"] = self.backend
        if self.settings is not None:
            chosen["pg_options"] = nccl_options(self.settings, timeout)
        return chosen


def communicator_of(config: DistConfig, group: GroupName, device: torch.device) -> Communicator:
    """Return how groups of a kind communicate. InputError if this torch was built without the library."""
    if device.type != "cuda":
        return Communicator()
    backend = config.pipeline_backend if group == "pp" else None
    if backend == "ucc" and not dist.is_ucc_available():
        raise InputError(
            "pipeline_model_parallel_comm_backend is ucc, and this torch was built without UCC: use nccl, or a build with it"
        )
    named = next((each for each in config.communicators if each.group == group), None)
    return Communicator(backend, named if (backend or config.backend) == "nccl" else None)


def nccl_options(settings: CommunicatorConfig, timeout: timedelta) -> "ProcessGroupNCCL.Options":
    """Return torch's form of the settings; a torch built without NCCL has none."""
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=settings.is_high_priority_stream)
    # new_group warns of options whose time limit is not the one it is given.
    options._timeout = timeout
    for name in _SETTINGS:
        value = getattr(settings, name)
        if value is not None:
            setattr(options.config, name, value)
    return options


def without_effect(config: DistConfig, device: torch.device) -> Iterator[str]:
    """Yield a line for each setting that a run of several ranks does not heed on this device."""
    if device.type == "cuda":
        return
    reason = "this run is on the CPU and uses gloo"
    if config.backend != "gloo":
        yield f"distributed_backend {config.backend}: {reason}"
    if config.pipeline_backend is not None:
        yield f"pipeline_model_parallel_comm_backend {config.pipeline_backend} has no effect: {reason}"
    if config.communicators:
        names = ", ".join(each.group for each in config.communicators)
        yield f"NCCL's settings of groups ({names}) have no effect: {reason}"
