"""The one rule by which an operation gets its form.

`triton` if the configuration asks for it, the device is a GPU and Triton is installed, else `portable`: the same function
through torch. What was asked for and cannot be had is said in one line (`portable_notice`), never in silence.
"""

import importlib.util
from typing import Literal

from primus.engine.config.model import FusionConfig

__all__ = ["Form", "pick", "portable_notice"]

Form = Literal["triton", "portable"]
_NAMES = {
    "rms_norm": "RMSNorm",
    "weighted_activation": "activation and routing weight of experts",
    "grouped_gemm": "products of experts",
}
"""Fields of the configuration that ask for a kernel, and what they are called."""


def pick(*, wanted: bool, device_type: str, has_triton: bool | None = None) -> Form:
    """Return the form of an operation; `has_triton` None looks."""
    return "triton" if wanted and _obstacle(device_type, has_triton) is None else "portable"


def portable_notice(fusion: FusionConfig, device_type: str, has_triton: bool | None = None) -> str | None:
    """Return one line on the operations that were asked for as kernels and run in their portable form.

    None: there are none, or nothing runs at all (on the meta device).
    """
    wanted = [name for field, name in _NAMES.items() if getattr(fusion, field)]
    obstacle = _obstacle(device_type, has_triton)
    if not wanted or obstacle is None or device_type == "meta":
        return None
    return f"portable forms run for {', '.join(wanted)} instead of the kernels asked for: {obstacle}; results are the same"


def _obstacle(device_type: str, has_triton: bool | None) -> str | None:
    if device_type != "cuda":
        return f"they need a GPU, and this run is on {device_type}"
    is_here = importlib.util.find_spec("triton") is not None if has_triton is None else has_triton
    return None if is_here else "they need the package triton, which is not installed"
