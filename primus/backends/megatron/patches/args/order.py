"""The order in which derivations and rules run.

Derivations come first, and one may read what an earlier one wrote: data choose the tokenizer before it is given a size, samples
lay iterations aside before the warm-up is read. Rules read only; their order is the order of the messages.
"""

from primus.backends.megatron.params import Derivation, Rule
from primus.backends.megatron.patches.args import (
    architecture,
    attention,
    batch,
    blocks,
    checkpoint,
    context,
    data,
    dispatch,
    duration,
    fsdp,
    groups,
    heterogeneous,
    logging,
    loop,
    mamba,
    mla,
    moe,
    mtp,
    offload,
    parallelism,
    pipeline,
    positions,
    precision,
    recompute,
    rocm_arg_validation,
    schedule,
    stages,
    tokenizer,
    tp_overlap,
    turbo,
    zero_bubble,
)

__all__ = ["DERIVATIONS", "RULES"]

_RUN = (loop, batch, duration, schedule, precision)
_MODEL = (
    architecture,
    mamba,
    heterogeneous,
    blocks,
    attention,
    mla,
    positions,
    parallelism,
    moe,
    dispatch,
    mtp,
    turbo,
    tp_overlap,
    fsdp,
    context,
    groups,
    stages,
    pipeline,
    zero_bubble,
    offload,
    recompute,
)
_AROUND = (data, tokenizer, checkpoint, logging, rocm_arg_validation)
_DERIVING = (
    data,
    tokenizer,
    turbo,
    dispatch,
    duration,
    schedule,
    fsdp,
    precision,
    parallelism,
    moe,
    recompute,
    checkpoint,
    rocm_arg_validation,
)

DERIVATIONS: tuple[Derivation, ...] = tuple(derive for subject in _DERIVING for derive in subject.DERIVATIONS)
RULES: tuple[Rule, ...] = tuple(rule for subject in (*_RUN, *_MODEL, *_AROUND) for rule in subject.RULES)
