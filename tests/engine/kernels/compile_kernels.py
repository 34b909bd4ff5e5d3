"""Compiles every Triton kernel for a GPU that need not be there; a program of its own, since the tests' Triton interprets."""

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from primus.engine.kernels.triton_forms import activation, attention, grouped, norm

WIDE = {"scale", "log_sum", "pull", "partial"}
"""Pointers to what is kept in fp32."""
ATTENTION: dict[str, Any] = {"scale": 0.125, "ROWS": 64, "KEYS": 64, "BLOCK_D": 64, "BLOCK_V": 64}
KERNELS: list[tuple[Any, str, dict[str, Any]]] = [
    (norm._forward, "x weight y scale", {"eps": 1e-5, "offset": 0.0, "BLOCK": 1024}),
    (norm._backward, "dy x weight scale dx partial", {"offset": 0.0, "BLOCK": 1024}),
    (activation._forward, "z p a", {"slope": 1.0, "BLOCK": 1024}),
    (activation._backward, "da z p dz dp a", {"slope": 1.0, "BLOCK": 1024}),
    (grouped._product, "x matrices out tiles", {"ROWS": 64, "COLUMNS": 64, "DEPTH": 32}),
    (attention._forward, "q k v out log_sum", ATTENTION),
    (attention._query_gradient, "q k v d_out log_sum pull d_q", ATTENTION),
    (attention._key_gradients, "q k v d_out log_sum pull d_k d_v", ATTENTION),
]

for kernel, pointers, constants in KERNELS:
    constants = {**constants, "WIDE": tl.float32}
    signature = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(pointers.split(), "*bf16")
    signature |= dict.fromkeys(WIDE & set(pointers.split()), "*fp32") | dict.fromkeys(constants, "constexpr")
    signature |= {"tiles": "*i32"} if "tiles" in signature else {}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert compiled.metadata.shared <= 99 * 1024, "shared memory that every GPU since 2020 has"
