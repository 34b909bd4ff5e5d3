"""Forward and backward of job S's model on samples of 32 to 512 tokens: packed, one by one, and padded in microbatches of four.

Prints one JSON line: useful tokens (those of samples) a second of processor time of one thread, the best of rounds that
alternate, and how many times the others' rate packing gives. A second line has attention alone: packed beside a mask of the
same samples and beside one sample of the whole length.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence

import torch
from jobs import JOBS
from torch import Tensor

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.kernels.attention import fused_attention
from primus.engine.kernels.segments import Segments
from primus.engine.kernels.varied_attention import ScoreRule
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

JOB = JOBS["S"]
LENGTH, SAMPLES, CHANNELS = 2048, 24, 32
CPU = torch.device("cpu")
Pack = list[int]
"""Lengths of the samples of one sequence."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    draw = random.Random(0)
    lengths = [draw.randint(32, 512) for _ in range(SAMPLES)]
    model = built()
    packs = packed(lengths)
    fours = [lengths[start : start + 4] for start in range(0, SAMPLES, 4)]
    ways: dict[str, Callable[[], object]] = {
        "packed": lambda: train_packed(model, packs),
        "alone": lambda: train_rows(model, [[length] for length in lengths]),
        "padded": lambda: train_rows(model, fours),
    }
    rates = {name: sum(lengths) / seconds for name, seconds in best(ways, rounds).items()}
    row = {"what": "packed samples", "sequences": len(packs), "useful": round(sum(lengths) / len(packs) / LENGTH, 3)}
    print(json.dumps({**row, **{f"{name}_tokens_s": round(rate) for name, rate in rates.items()}, **times(rates)}))
    print(json.dumps(attention_alone(packs[0], rounds)))


def times(rates: dict[str, float]) -> dict[str, float]:
    """Return how many times the rate of the others packing gives."""
    return {f"over_{name}": round(rates["packed"] / rate, 2) for name, rate in rates.items() if name != "packed"}


def attention_alone(pack: Pack, rounds: int) -> dict[str, object]:
    """Time attention in the three ways."""
    segments = Segments(bounds(pack), CPU)
    rows = torch.arange(LENGTH)
    mask = segments.blocked(ScoreRule(), rows, rows)[None, None]

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fused_attention(q, k, v, None)

    q, k, v = (torch.randn(LENGTH, 1, number, CHANNELS, requires_grad=True) for number in (JOB.heads, JOB.groups, JOB.groups))
    ways: dict[str, Callable[[], object]] = {
        "packed": lambda: torch.autograd.backward(segments.attend(causal, q, k, v).sum()),
        "masked": lambda: torch.autograd.backward(fused_attention(q, k, v, mask).sum()),
        "whole": lambda: torch.autograd.backward(causal(q, k, v).sum()),
    }
    rates = {name: 1 / seconds for name, seconds in best(ways, rounds).items()}
    return {"what": "packed attention", **{f"{name}_ms": round(1e3 / rate, 1) for name, rate in rates.items()}, **times(rates)}


def best(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the least processor time of each way, in seconds."""
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            measured[name].append(time.process_time() - start)
    return {name: min(each[1:]) for name, each in measured.items()}


def packed(lengths: Sequence[int]) -> list[Pack]:
    """Put each sample into the first sequence that has room."""
    packs: list[Pack] = []
    for length in sorted(lengths, reverse=True):
        room = next((pack for pack in packs if sum(pack) + length <= LENGTH), None)
        if room is None:
            packs.append([length])
        else:
            room.append(length)
    return packs


def bounds(pack: Pack) -> list[int]:
    """Return where the samples of a sequence end, and the padding behind them."""
    ends = [sum(pack[:number]) for number in range(len(pack) + 1)]
    return ends if ends[-1] == LENGTH else [*ends, LENGTH]


def train_packed(model: GPTModel, packs: Sequence[Pack]) -> None:
    """Run sequences of samples."""
    for pack in packs:
        segments = Segments(bounds(pack), CPU)
        train(model, segments.position[None], segments, (torch.arange(LENGTH) < sum(pack))[None])


def train_rows(model: GPTModel, microbatches: Sequence[Sequence[int]]) -> None:
    """Run samples as rows, filled up to the longest."""
    for lengths in microbatches:
        positions = torch.arange(max(lengths)).expand(len(lengths), -1)
        train(model, positions, None, positions < torch.tensor(lengths)[:, None])


def train(model: GPTModel, positions: Tensor, segments: Segments | None, counts: Tensor) -> None:
    """Run a microbatch of random tokens."""
    tokens = torch.randint(JOB.vocabulary, positions.shape)
    torch.autograd.backward(model(tokens, positions, segments, tokens, counts.float()))
    model.zero_grad()


def built() -> GPTModel:
    """Return the model of the job."""
    config = ModelConfig(
        num_layers=JOB.layers,
        hidden_size=JOB.hidden,
        ffn_hidden_size=JOB.ffn,
        seq_length=LENGTH,
        vocab_size=JOB.vocabulary,
        attention=AttentionConfig(
            num_attention_heads=JOB.heads, num_query_groups=JOB.groups, kv_channels=JOB.hidden // JOB.heads
        ),
        position=PositionConfig(max_position_embeddings=LENGTH),
    )
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    return model


if __name__ == "__main__":
    main()
