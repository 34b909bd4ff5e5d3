"""Packed samples train as they do in sequences of their own, and so does every layout, in float64."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import train
from test_golden_blocks import DELTA, HYBRID, SHORT
from test_golden_layouts import in_float64

from primus.engine.data.loader import Batch, Loader

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
Cut = Callable[[Batch], Batch]
BASE: Keys = {
    "train_iters": 2,
    "global_batch_size": 4,
    "micro_batch_size": 1,
    "eval_interval": 2,
    "eval_iters": 1,
    "calculate_per_token_loss": True,
    "init_method_std": 0.2,
}
LATENT: Keys = {
    "multi_latent_attention": True,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 8,
    "qk_layernorm": True,
}
EXPERTS: Keys = {"num_experts": 4, "moe_router_load_balancing_type": "none", "moe_token_dispatcher_type": "alltoall"}
MODELS: dict[str, Keys] = {
    "llama": {"group_query_attention": True, "num_query_groups": 2},
    "positions": {"position_embedding_type": "learned_absolute", "attention_backend": "unfused"},
    "latent": LATENT,
    "experts": EXPERTS,
    "state-space": HYBRID,
    "short": SHORT,
    "delta": DELTA,
}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: dict[str, tuple[str, int, Keys]] = {
    "tp2-full": ("llama", 2, {**TP2, **FULL}),
    "pp2-dp2": ("llama", 4, {"pipeline_model_parallel_size": 2}),
    "cp2": ("positions", 2, {"context_parallel_size": 2, "attention_backend": "auto"}),
    "cp2-latent": ("latent", 2, {"context_parallel_size": 2, "recompute_granularity": "selective"}),
    "tp2-state-space": ("state-space", 2, TP2),
    "ep2": ("experts", 2, {"expert_model_parallel_size": 2}),
}
LENGTHS = (3, 13, 8, 8)


def packed(batch: Batch) -> Batch:
    """Say that a sequence holds samples of several lengths, the last of them padding."""
    ends = torch.tensor(LENGTHS).cumsum(0).tolist()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    mask = batch.loss_mask.clone()
    mask[:, [end - 1 for end in ends]] = 0
    mask[:, ends[-2] :] = 0
    return replace(batch, position_ids=positions, loss_mask=mask, cu_seqlens=(0, *ends))


def padded(batch: Batch) -> Batch:
    """Give each sample of the pack a row of its own, filled up to the longest."""
    given, longest = packed(batch), max(LENGTHS)

    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(list(x[0].split(LENGTHS)), batch_first=True, padding_value=0)[:, :longest]

    names = ("tokens", "labels", "loss_mask", "position_ids")
    return Batch(**{name: rows(getattr(given, name)) for name in names}, attention_mask=None)


def varied(batch: Batch) -> Batch:
    """Cut the sequence to a length that its tokens say, so that microbatches and ranks differ."""
    length = 8 + 4 * int(batch.tokens.sum() % 7)
    names = ("tokens", "labels", "loss_mask", "position_ids")
    return replace(batch, **{name: getattr(batch, name)[:, :length] for name in names})


def partly_masked(batch: Batch) -> Batch:
    """Leave a loss to few tokens of some microbatches, and to none of the others."""
    number = int(batch.tokens.sum())
    kept = torch.arange(batch.tokens.shape[1]) < (number % 11 + 1 if number % 3 else 0)
    return replace(batch, loss_mask=batch.loss_mask * kept)


def partly_masked_rows(batch: Batch) -> Batch:
    """Do the same to each row of a larger microbatch."""
    rows = [replace(batch, tokens=batch.tokens[[row]], loss_mask=batch.loss_mask[[row]]) for row in range(len(batch.tokens))]
    return replace(batch, loss_mask=torch.cat([partly_masked(row).loss_mask for row in rows]))


def masked(batch: Batch) -> Batch:
    return replace(batch, loss_mask=torch.zeros_like(batch.loss_mask))


def halved(batch: Batch) -> Batch:
    names = ("tokens", "labels", "loss_mask", "position_ids")
    return replace(batch, **{name: getattr(batch, name)[:, :16] for name in names})


def rows_of(folder: Path, name: str, cut: Cut, keys: Keys, ranks: int = 1) -> list[dict[str, Any]]:
    whole = Loader.batches

    def batches(self: Loader, consumed: int) -> Iterator[Batch]:
        return map(cut, whole(self, consumed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loader, "batches", batches)
        return train(folder, name, {**BASE, **keys}, ranks=ranks, change=in_float64)


def run(folder: Path, name: str, cut: Cut, keys: Keys, ranks: int = 1) -> list[float]:
    rows = rows_of(folder, name, cut, keys, ranks)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm", "validation_loss") if key in row]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: run(folder, name, packed, keys) for name, keys in MODELS.items()}


@pytest.mark.parametrize("model", MODELS)
def test_packed_samples_train_as_in_rows_of_their_own(model: str, alone: dict[str, list[float]], tmp_path: Path) -> None:
    assert alone[model] == pytest.approx(run(tmp_path, "padded", padded, MODELS[model]), rel=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout: str, alone: dict[str, list[float]], tmp_path: Path) -> None:
    model, ranks, keys = LAYOUTS[layout]
    many = run(tmp_path, "many", packed, {**MODELS[model], **keys}, ranks)
    assert many == pytest.approx(alone[model], rel=1e-12)


def test_throughput_counts_the_tokens_and_the_samples_that_there_are(tmp_path: Path) -> None:
    keys = MODELS["llama"]
    work = {}
    for cut in (packed, halved):
        rows = rows_of(tmp_path, cut.__name__, cut, {**keys, "context_parallel_size": 2}, 2)
        work[cut] = [
            [row[rate] * row["iteration_time_ms"] / 1e3 for row in rows if rate in row]
            for rate in ("tokens_per_second", "tflops_per_device")
        ]
    tokens, tflops = work[packed]
    assert tokens == pytest.approx([4 * 32] * 2)
    assert work[halved][0] == pytest.approx([4 * 16] * 2)
    # 2 layers of 32 channels: 3 x 2 operations for half of all pairs, in both products.
    more = 4 * 3 * 2 * 2 * 32 * (sum(length**2 for length in LENGTHS) - 2 * 16**2)
    assert [2 * one * 1e12 for one in tflops] == pytest.approx([4 * half * 1e12 + more for half in work[halved][1]])


def test_sequences_of_many_lengths_train_as_on_one_process(tmp_path: Path) -> None:
    one = run(tmp_path, "one", varied, EXPERTS)
    for name, keys in {"dp2": {"expert_model_parallel_size": 2}, "tp2": TP2, "cp2": {"context_parallel_size": 2}}.items():
        assert run(tmp_path, name, varied, {**EXPERTS, **keys}, 2) == pytest.approx(one, rel=1e-12), name


def test_microbatches_without_a_loss_weigh_nothing_whoever_has_them(tmp_path: Path) -> None:
    keys = {**EXPERTS, "mtp_num_layers": 1}
    one = run(tmp_path, "one", partly_masked, keys)
    assert all(0 < value < 100 for value in one)
    divided = {**keys, "context_parallel_size": 2, "cp_comm_type": "a2a"}
    assert run(tmp_path, "divided", partly_masked, divided, 2) == pytest.approx(one, rel=1e-12)
    assert run(tmp_path, "larger", partly_masked_rows, {**keys, "micro_batch_size": 4}) == pytest.approx(one, rel=1e-12)


def test_a_step_without_any_loss_is_no_nan(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "none", masked, {"eval_iters": 0, "lr": 0.1, "weight_decay": 0.0})
    assert [(row["lm_loss"], row["grad_norm"]) for row in rows] == [(0.0, 0.0)] * 2
