"""`OffloadStore`: activations that lie in host memory between forward and backward, when a schedule's table says so.

What a forward keeps for its backward is packed by its memory, so that views of one tensor travel once. The backward gets views
of what came back, with the bits, shapes and strides of those that left.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from primus.engine.model.attention import SelfAttention
from primus.engine.model.gpt import GPTModel
from primus.engine.pipeline.host_link import HostLink, Started
from primus.engine.pipeline.schedules import Op
from primus.engine.pipeline.storage import memory_of

__all__ = ["OffloadStore", "core_attentions"]


class OffloadStore:
    """What offloaded forwards keep, by operation; the runtime says when it leaves and comes back."""

    def __init__(self, link: HostLink, resident: set[int], attention: Sequence[nn.Module] | None = None) -> None:
        """`resident` names memory that is no activation, such as that of weights.

        `attention` lists core attentions: what they keep, and their output, is moved; None moves everything that is kept. Both
        mean floating point alone: ids and masks stay.
        """
        self._link, self._resident = link, resident
        self._chosen = None if attention is None else _Chosen(attention)
        self._open: dict[int, _Memory] | None = None
        self._input = 0
        self._kept: dict[Op, list[_Memory]] = {}
        self.parked_bytes = 0
        """On the host alone, at present."""
        self.most_parked_bytes = 0
        """So far."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on the host or under way."""
        return not self._kept

    @contextmanager
    def keeping(self, unit: Op, given: Tensor | None) -> Iterator[None]:
        """Take what the forward in the body keeps, and start to copy it after the body.

        `given`, what the forward starts from, stays: the stage holds it for its gradient.
        """
        self._open, self._input = {}, 0 if given is None else memory_of(given)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield
        kept, self._open = list(self._open.values()), None
        self._kept[unit] = [memory for memory in kept if memory.leaves]
        for memory in self._kept[unit]:
            memory.start_save(self._link)

    def free(self, unit: Op) -> None:
        """Let the device's memory go when the copies are over."""
        for memory in self._kept[unit]:
            memory.free()
            self.parked_bytes += memory.num_bytes
        self.most_parked_bytes = max(self.most_parked_bytes, self.parked_bytes)

    def load(self, unit: Op) -> None:
        """Take memory of the device again and start to copy back."""
        for memory in self._kept[unit]:
            memory.start_load(self._link)
            self.parked_bytes -= memory.num_bytes

    def end(self, unit: Op) -> None:
        """Let go of a unit after its backward, which may have read less than came back."""
        for memory in self._kept.pop(unit):
            memory.whole()

    def forget(self) -> None:
        """Let go of everything, when its copies are over."""
        for memory in (memory for kept in self._kept.values() for memory in kept):
            memory.free()
        self._kept.clear()
        self.parked_bytes = 0

    def _pack(self, x: Tensor) -> "Tensor | _Packed":
        name = memory_of(x)
        if self._open is None or name in self._resident or name == self._input or not x.is_floating_point():
            return x
        if name not in self._open:
            self._open[name] = _Memory(x)
        memory = self._open[name]
        memory.leaves |= self._chosen is None or self._chosen.takes(name)
        return _Packed(memory, x)


class _Chosen:
    """Knows whether a core attention runs, and where its last output lies."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._is_inside, self._output = False, 0
        for module in modules:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def takes(self, name: int) -> bool:
        """Tell whether memory that is kept at this moment is chosen."""
        return self._is_inside or name == self._output

    def _enter(self, _module: nn.Module, _arguments: Any) -> None:
        self._is_inside, self._output = True, 0

    def _leave(self, _module: nn.Module, _arguments: Any, output: Tensor) -> None:
        self._is_inside, self._output = False, memory_of(output)


class _Memory:
    """Memory that a backward needs: on the device, on the host, or on its way back."""

    def __init__(self, x: Tensor) -> None:
        self._device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
        self._saved: Started | None = None
        self._loaded: Started | None = None
        self.num_bytes = self._device.numel()
        self.leaves = False

    def start_save(self, link: HostLink) -> None:
        """Start to copy to the host."""
        assert self._device is not None
        self._saved = link.start_save(self._device)

    def free(self) -> None:
        """Wait for the copy and let go of the device's memory."""
        assert self._saved is not None
        _, wait = self._saved
        wait()
        self._device = None

    def start_load(self, link: HostLink) -> None:
        """Start to copy back."""
        assert self._saved is not None
        host, _ = self._saved
        self._loaded = link.start_load(host)

    def whole(self) -> Tensor:
        """Return the bytes on the device, after the copy back if there was one."""
        if self._loaded is not None:
            self._device, wait = self._loaded
            wait()
            self._saved = self._loaded = None
        assert self._device is not None, "a backward needs what its schedule left on the host"
        return self._device


class _Packed:
    """A tensor as autograd keeps it: a view of its memory."""

    def __init__(self, memory: _Memory, x: Tensor) -> None:
        self._memory = memory
        self._view = x.shape, x.stride(), x.storage_offset()
        self._dtype = x.dtype

    def unpack(self) -> Tensor:
        """Return the tensor on the device."""
        return self._memory.whole().view(self._dtype).as_strided(*self._view)


def core_attentions(chunks: Sequence[GPTModel]) -> list[nn.Module]:
    """Return the core attention of every layer."""
    return [part.core_attention for chunk in chunks for part in chunk.modules() if isinstance(part, SelfAttention)]


def _unpack(kept: Tensor | _Packed) -> Tensor:
    return kept.unpack() if isinstance(kept, _Packed) else kept
