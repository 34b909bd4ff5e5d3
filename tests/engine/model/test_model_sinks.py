"""Sinks, windows and soft caps: the recorded model of Megatron-Core, and each key's effect on what a query sees."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import check_model, load_weights, model_of, read, under
from torch import Tensor

from primus.engine.kernels.attention import explicit_attention
from primus.engine.kernels.varied_attention import ScoreRule, varied_attention

DATA = Path(__file__).parents[2] / "data" / "dense"
CASE = "sink_attention_window"


def test_a_model_with_sinks_and_windows_computes_as_megatron_core(tmp_path: Path) -> None:
    case, tensors = read(DATA, CASE)
    model = model_of(tmp_path, case)
    check_model(model, case, tensors)


def heads(S: int, K: int, V: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=draw).requires_grad_()

    return tensor(S, 2, 4, 8), tensor(K, 2, 2, 8), tensor(K, 2, 2, V), tensor(4)


RULES = [
    ScoreRule(),
    ScoreRule(window=3),
    ScoreRule(cap=0.7),
    ScoreRule(window=140, cap=2.0),
    ScoreRule(window=1),
    ScoreRule(chunk=5),
    ScoreRule(chunk=130),
    ScoreRule(chunk=200, window=9),
    ScoreRule(chunk=7, cap=1.5),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("S", "K", "V"), [(12, 12, 6), (300, 300, 6), (300, 300, 8), (150, 300, 8), (5, 12, 6)])
@pytest.mark.parametrize("has_sinks", [True, False])
def test_blocks_equal_the_formula(rule: ScoreRule, S: int, K: int, V: int, has_sinks: bool) -> None:
    results = []
    for form in (varied_attention, explicit_attention):
        q, k, v, sink = heads(S, K, V)
        out = form(q, k, v, None, rule=rule, sink_N=sink if has_sinks else None)
        inputs = (q, k, v, sink) if has_sinks else (q, k, v)
        gradients = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out).sin()).sum(), inputs)
        results.append((out, *gradients))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rule", [ScoreRule(window=140), ScoreRule(chunk=140), ScoreRule()], ids=str)
def test_half_precision_stays_near_the_formula(rule: ScoreRule) -> None:
    results = []
    for form, dtype in ((varied_attention, torch.bfloat16), (explicit_attention, torch.float64)):
        *inputs, sink = heads(300, 300, 8)
        out = form(*(x.to(dtype) for x in inputs), None, rule=rule, sink_N=sink.float() if dtype == torch.bfloat16 else sink)
        results.append((out, *torch.autograd.grad(out.sum(), (*inputs, sink))))
    for ours, expected in zip(*results, strict=True):
        assert (ours - expected).norm() < 0.02 * expected.norm()


def test_a_window_counts_the_token_itself(tmp_path: Path) -> None:
    """The keys that reach a query's output: W of them in even layers, all before it in odd ones."""
    for window, even_only, seen in ((4, True, [4, 16]), (4, False, [4, 4]), (0, True, [16, 16])):
        keys = {"sink_sliding_window": window, "sink_window_even_layers_only": even_only}
        assert [reach(tmp_path, number, keys) for number in (0, 1)] == seen


def test_windows_and_chunks_of_any_layers(tmp_path: Path) -> None:
    """`window_size` counts the keys before a token; the last chunk of 16 positions by sixes has four."""
    plain = {"use_sink_attention": False, "sink_sliding_window": 0}
    for keys, seen in (
        ({"window_size": [3, 0]}, [4, 4]),
        ({"window_size": [3, 0], "window_attn_skip_freq": 2}, [4, 16]),
        ({"attention_chunk_size": 6}, [4, 4]),
        ({"attention_chunk_size": 6, "no_rope_freq": "[1, 0]"}, [16, 4]),
        ({"attention_chunk_size": 6, "window_size": [2, 0]}, [3, 3]),
    ):
        assert [reach(tmp_path, number, {**plain, **keys}) for number in (0, 1)] == seen


def reach(folder: Path, number: int, keys: dict[str, Any]) -> int:
    case, _ = read(DATA, CASE)
    model = model_of(folder, case, **keys)
    core: Any = dict(model.decoder.numbered())[number].self_attention.core_attention
    q, k, v = (torch.randn(16, 1, n, 8) for n in (4, 2, 2))
    v.requires_grad_()
    core(q, k, v, None)[-1].sum().backward()
    assert v.grad is not None
    return int((v.grad.abs().sum((1, 2, 3)) > 0).sum())


def test_soft_caps_bound_scores_and_logits(tmp_path: Path) -> None:
    case, tensors = read(DATA, CASE)
    model = model_of(tmp_path, case, final_logit_softcapping=0.5)
    plain = model_of(tmp_path, case)
    for each in (model, plain):
        load_weights(each, under(tensors, "w/"))
    inputs = tensors["in/input_ids"], tensors["in/position_ids"]
    with torch.no_grad():
        capped, free = model(*inputs), plain(*inputs)
        torch.testing.assert_close(capped, 0.5 * torch.tanh(free / 0.5))
        labels, mask = tensors["in/labels"], tensors["in/loss_mask"]
        whole = (model(*inputs, labels_BS=labels) * mask).sum()
        torch.testing.assert_close(model(*inputs, labels_BS=labels, loss_mask_BS=mask), whole)
    capped_scores = model_of(tmp_path, case, attn_logit_softcapping=1e-4)
    core: Any = dict(capped_scores.decoder.numbered())[1].self_attention.core_attention
    core.softmax_offset.data.fill_(-1e9)
    v = torch.randn(16, 1, 2, 8)
    out = core(100 * torch.randn(16, 1, 4, 8), 100 * torch.randn(16, 1, 2, 8), v, None)
    mean = v.repeat_interleave(2, dim=2).mean(0, keepdim=True).flatten(2)
    torch.testing.assert_close(out[-1:], mean, rtol=1e-3, atol=1e-3)
