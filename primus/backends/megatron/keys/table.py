"""`KEYS`: every flat key of the Megatron front door by name: the reference page's in its order, then those of families."""

from itertools import chain

from primus.backends.megatron.keys import (
    architecture,
    biencoder,
    checkpointing,
    data,
    dino,
    distribution,
    families,
    fusion,
    inference,
    logging_,
    mla,
    model_parallel,
    module,
    moe,
    optimizer,
    precision,
    primus_pipeline,
    profiling,
    recompute,
    resilience,
    retro,
    rl,
    softcap,
    straggler,
    tokenizer,
    tp_overlap,
    training,
    turbo,
    vision,
    zero_bubble,
)
from primus.core.keys import Key

__all__ = ["KEYS"]

_CHAPTERS = (
    (module, training, precision, optimizer),
    (distribution, model_parallel, tp_overlap),
    (checkpointing, data, recompute, logging_, profiling),
    (architecture, tokenizer, fusion, mla, moe, softcap),
    (turbo, zero_bubble, primus_pipeline),
    (rl, vision, retro, dino, biencoder, straggler, inference, resilience),
    (families,),
)

KEYS: dict[str, Key] = {row.name: row for subject in chain.from_iterable(_CHAPTERS) for row in subject.ROWS}
