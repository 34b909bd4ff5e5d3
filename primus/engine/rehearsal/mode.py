"""`Mode`: what sees every operator while it is entered; ours are cheap to pass through."""

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Mode"]


class Mode(TorchDispatchMode):
    """Nothing is compiled inside it, and telling the compiler so at each call would cost more than the call."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
