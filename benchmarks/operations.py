"""Each operation's forms beside one another: ours, the plain formula, torch's compiled formula, transformers' own layer.

Prints one JSON line an operation: median milliseconds of a forward and a backward of every form, alternating in one process,
and their ratios to ours (above 1: ours is faster). On a GPU in bf16, with the Triton forms besides; else in fp32, where one
thread is timed by the processor's seconds, which other programs on the machine do not lengthen.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import MixtralConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from primus.engine.host_memory import keep_freed_memory
from primus.engine.kernels.activation import swiglu, swiglu_reference
from primus.engine.kernels.attention import explicit_attention, fused_attention, plain_attention_form
from primus.engine.kernels.expert_mlp import ExpertForms, expert_mlp, expert_mlp_reference
from primus.engine.kernels.grouped_linear import product_each, product_form
from primus.engine.kernels.norm import rms_norm, rms_norm_form, rms_norm_reference
from primus.engine.kernels.permute import add_rows, take_rows
from primus.engine.kernels.weighted_activation import (
    AnyWeighted,
    Results,
    WeightedActivation,
    WeightedGate,
    weighted_activation,
)

Form = Callable[[], Any]
GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)
TOKENS, HIDDEN, WIDTH, HEADS, GROUPS, EXPERTS = (8192, 2048, 1024, 16, 4, 32) if GPU else (2048, 256, 512, 8, 4, 8)
SEQUENCE = 2048 if GPU else 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=OPERATIONS)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 and not GPU else time.perf_counter
    for name, operation in OPERATIONS.items():
        if arguments.only in (None, name):
            for what, forms in operation():
                print(json.dumps(measure(what, forms, arguments.rounds, clock)), flush=True)


def measure(what: str, forms: dict[str, Form], rounds: int, clock: Callable[[], float]) -> dict[str, object]:
    """Run all forms in turn; the first is ours."""
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds + 3):
        for name, form in forms.items():
            start = clock()
            form()
            if GPU:
                torch.cuda.synchronize()
            times[name].append(clock() - start)
    ours = times[next(iter(forms))]
    ratios = {name: [a / b for a, b in zip(all_[3:], ours[3:], strict=True)] for name, all_ in times.items()}
    return {
        "what": what,
        "ms": {name: round(1e3 * statistics.median(all_[3:]), 2) for name, all_ in times.items()},
        "ratio": {name: round(statistics.median(each), 2) for name, each in list(ratios.items())[1:]},
    }


def norms() -> Iterator[tuple[str, dict[str, Form]]]:
    """RMSNorm of the residual stream."""
    x, weight, dy = draw(TOKENS, HIDDEN), draw(HIDDEN), draw(TOKENS, HIDDEN)
    theirs = LlamaRMSNorm(HIDDEN).to(DEVICE, DTYPE)
    forms: dict[str, Form] = {
        "ours": both(lambda: rms_norm(x, weight, 1e-5), (x, weight), dy),
        "formula": both(lambda: rms_norm_reference(x, weight, 1e-5), (x, weight), dy),
        "transformers": both(lambda: theirs(x), (x, theirs.weight), dy),
    }
    if GPU:
        kernel = rms_norm_form("triton")
        forms["triton"] = both(lambda: kernel(x, weight, 1e-5, 0.0), (x, weight), dy)
    forms |= compiled(lambda x, weight: rms_norm_reference(x, weight, 1e-5), (x, weight), dy)
    yield f"RMSNorm of {TOKENS} x {HIDDEN}", forms


def activations() -> Iterator[tuple[str, dict[str, Form]]]:
    """Gated activation of rows, with a weight for each."""
    rows = 2 * TOKENS if GPU else 2 * TOKENS // EXPERTS  # on a CPU experts take turns
    z, p, dy = draw(rows, 2 * WIDTH), draw(rows), draw(rows, WIDTH)

    def by(gate: WeightedActivation) -> Form:
        da, results = torch.empty_like(dy), Results(torch.empty_like(z), torch.empty_like(p), torch.empty_like(dy))

        @torch.no_grad()
        def run() -> None:
            gate.forward(z, p)
            gate.backward_(da.copy_(dy), z, p, results)

        return run

    forms: dict[str, Form] = {
        "ours": by(WeightedGate(1.0)),
        "formula": both(lambda: swiglu_reference(z) * p[:, None], (z, p), dy),
    }
    if GPU:
        forms["triton"] = by(weighted_activation("swiglu", "triton"))
    forms |= compiled(lambda z, p: swiglu_reference(z) * p[:, None], (z, p), dy)
    yield f"swiglu of {rows} x {2 * WIDTH} times a weight a row", forms


def experts() -> Iterator[tuple[str, dict[str, Form]]]:
    """The feed-forward parts of experts, with the sorting of rows and their sums."""
    config = MixtralConfig(hidden_size=HIDDEN, intermediate_size=WIDTH, num_local_experts=EXPERTS)
    config._experts_implementation = "eager"
    theirs = MixtralExperts(config).to(DEVICE, DTYPE)
    w1, w2 = theirs.gate_up_proj, theirs.down_proj
    for parameter in (w1, w2):
        torch.nn.init.normal_(parameter, std=0.02)
    x, dy = draw(TOKENS, HIDDEN), draw(TOKENS, HIDDEN)
    weights, chosen = draw(TOKENS, EXPERTS).detach().softmax(-1).topk(2)
    order = chosen.flatten().argsort(stable=True)
    token, p, counts = order // 2, weights.flatten()[order], chosen.flatten().bincount(minlength=EXPERTS).tolist()

    def ours(forms: ExpertForms) -> Form:
        return both(lambda: add_rows(expert_mlp(take_rows(x, token), p, w1, w2, counts, forms), token, TOKENS), (x, w1, w2), dy)

    forms: dict[str, Form] = {
        "ours": ours(ExpertForms(WeightedGate(1.0))),
        "one by one": ours(ExpertForms(WeightedGate(1.0), grouped=False)),
        "activation by autograd": ours(ExpertForms(AnyWeighted(swiglu))),
        "formula": both(
            lambda: add_rows(expert_mlp_reference(take_rows(x, token), p, w1, w2, counts, swiglu_reference), token, TOKENS),
            (x, w1, w2),
            dy,
        ),
        "transformers": both(lambda: theirs(x, chosen, weights), (x, w1, w2), dy),
    }
    if GPU:
        kernels = ExpertForms(weighted_activation("swiglu", "triton"), product=product_form("triton"))
        forms["triton"] = ours(kernels)
    yield f"{EXPERTS} experts, two of each of {TOKENS} tokens, {HIDDEN} x {WIDTH}", forms


def products() -> Iterator[tuple[str, dict[str, Form]]]:
    """Products of many experts, by the number of experts and of rows, forward only."""
    for number, rows in ((8, 16), (8, 512), (32, 16), (32, 128), (64, 8), (64, 64), (64, 2000)):
        counts = [max(1, rows + (e % 5 - 2) * rows // 8) for e in range(number)]
        x = draw(sum(counts), HIDDEN).detach()
        matrices = draw(number, 2 * WIDTH, HIDDEN).detach().transpose(1, 2)
        out = x.new_empty(len(x), 2 * WIDTH)
        ends = torch.tensor(counts, device=DEVICE).cumsum(0).to(torch.int32)
        forms: dict[str, Form] = {
            "ours": lambda x=x, m=matrices, out=out, counts=counts: product_each(x, m, out, counts),  # type: ignore[misc]
            "torch's grouped": lambda x=x, m=matrices, ends=ends: F.grouped_mm(x, m, offs=ends),  # type: ignore[misc]
            "padded batch": lambda x=x, m=matrices, counts=counts: padded(x, m, counts),  # type: ignore[misc]
        }
        if GPU:
            kernel = product_form("triton")
            forms["triton"] = lambda x=x, m=matrices, out=out, c=counts, k=kernel: k(x, m, out, c)  # type: ignore[misc]
        yield f"{number} products of about {rows} x {HIDDEN} x {2 * WIDTH}", forms


def attentions() -> Iterator[tuple[str, dict[str, Form]]]:
    """Causal attention with grouped queries."""
    channels, batch = HIDDEN // HEADS, TOKENS // SEQUENCE
    q = draw(SEQUENCE, batch, HEADS, channels)
    k, v = draw(SEQUENCE, batch, GROUPS, channels), draw(SEQUENCE, batch, GROUPS, channels)
    dy = draw(SEQUENCE, batch, HIDDEN)

    def torchs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (each.permute(1, 2, 0, 3) for each in (q, k, v))
        return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).permute(2, 0, 1, 3).flatten(2)

    forms: dict[str, Form] = {
        "ours": both(lambda: fused_attention(q, k, v, None), (q, k, v), dy),
        "formula": both(lambda: explicit_attention(q, k, v, None), (q, k, v), dy),
        "transformers (torch's kernel)": both(lambda: torchs(q, k, v), (q, k, v), dy),
    }
    if GPU:
        kernel = plain_attention_form("triton")
        forms["triton"] = both(lambda: kernel(q, k, v), (q, k, v), dy)
    yield f"causal attention, {batch} sequences of {SEQUENCE}, {HEADS} heads of {channels}, {GROUPS} groups", forms


OPERATIONS = {"norms": norms, "activations": activations, "experts": experts, "products": products, "attentions": attentions}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE).requires_grad_()


def both(forward: Callable[[], Tensor], inputs: Sequence[Tensor], dy: Tensor) -> Form:
    """Return a forward and a backward."""
    return lambda: torch.autograd.grad(forward(), inputs, dy.detach())


def compiled(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], dy: Tensor) -> dict[str, Form]:
    """Return the form that torch's compiler makes, where it has a compiler to call."""
    if not GPU and shutil.which("g++") is None:
        return {}
    fast = torch.compile(function)
    return {"compiled formula": both(lambda: fast(*inputs), inputs, dy)}


def padded(x_MA: Tensor, matrices_EAB: Tensor, counts: Sequence[int]) -> Tensor:
    """Multiply by one batched product of as many rows for each expert as the longest has."""
    batch = torch.nn.utils.rnn.pad_sequence(x_MA.split(list(counts)), batch_first=True)
    out = torch.bmm(batch, matrices_EAB)
    return torch.cat([rows[:count] for rows, count in zip(out, counts, strict=True)])


if __name__ == "__main__":
    main()
