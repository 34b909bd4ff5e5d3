"""Forward and backward of attention with windows, chunks, sinks or capped scores, beside plain attention.

Prints one JSON line a rule: processor time in ms of one thread, the least of several rounds that alternate with plain causal
attention, and how many times plain attention's that is.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from primus.engine.kernels.attention import sdpa_attention
from primus.engine.kernels.varied_attention import ScoreRule, varied_attention

RULES = {
    "window 128": ScoreRule(window=128),
    "window 512": ScoreRule(window=512),
    "window 1024": ScoreRule(window=1024),
    "chunk 512": ScoreRule(chunk=512),
    "sinks": ScoreRule(),
    "soft cap": ScoreRule(cap=30.0),
}
HEADS, GROUPS, CHANNELS = 8, 4, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, rule in RULES.items():
        sink = torch.zeros(HEADS, requires_grad=True) if name == "sinks" else None

        def varied(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule = rule, sink: Tensor | None = sink) -> Tensor:
            return varied_attention(q, k, v, None, rule=rule, sink_N=sink)

        def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return sdpa_attention(q, k, v, None)

        rounds = [
            (milliseconds(varied, arguments.length), milliseconds(plain, arguments.length)) for _ in range(arguments.rounds)
        ]
        ours, beside = (min(column) for column in zip(*rounds, strict=True))
        row = {"what": name, "length": arguments.length, "ms": round(ours, 1), "plain_ms": round(beside, 1)}
        print(json.dumps({**row, "times_plain": round(ours / beside, 2)}))


def milliseconds(attention: Callable[[Tensor, Tensor, Tensor], Tensor], length: int) -> float:
    """Return the processor time of a forward and a backward."""
    q, k, v = (torch.randn(length, 1, heads, CHANNELS, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS))
    start = time.process_time()
    attention(q, k, v).sum().backward()
    return 1e3 * (time.process_time() - start)


if __name__ == "__main__":
    main()
