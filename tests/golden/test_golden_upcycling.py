"""A sparse model begins as the dense model that it is made of, on any layout, and goes on from its own checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import in_float64

pytestmark = pytest.mark.slow  # whole runs

Keys = dict[str, Any]
SHORT: Keys = {"global_batch_size": 2, "train_iters": 1}
SAVE: Keys = {**SHORT, "save": "ckpt", "save_interval": 100}
WHOLE: Keys = {"num_experts": 4, "moe_use_upcycling": True, "moe_router_topk": 2}
SLICED: Keys = {**WHOLE, "moe_ffn_hidden_size": 32}
EP2: Keys = {"expert_model_parallel_size": 2, "moe_token_dispatcher_type": "alltoall"}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
ACTIVATIONS: dict[str, Keys] = {"swiglu": {"swiglu": True}, "squared": {"swiglu": False, "squared_relu": True}}
"""A squared one makes slices exact: their scale comes out of it as G."""
CASES: dict[str, tuple[int, str, Keys]] = {
    "copies": (1, "swiglu", {**WHOLE, "moe_layer_freq": 2}),
    "slices-ep2": (2, "squared", {**SLICED, **EP2}),
    "slices-zero3": (2, "squared", {**SLICED, **ZERO3}),
    "slices-pre-softmax": (1, "squared", {**SLICED, "num_experts": 2, "moe_router_pre_softmax": True}),
}
"""Ranks, activation, keys of the sparse model."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Keys, float, float]]:
    """Return by activation: keys that load a dense model, the loss that it begins with, and the one before it was trained."""
    found = {}
    for name, keys in ACTIVATIONS.items():
        folder = tmp_path_factory.mktemp(name)
        (before,) = train(folder, "dense", {**keys, **SAVE, "lr": 0.01}, change=in_float64)
        source = {**keys, "load": str(folder / "g" / "u" / "dense" / "ckpt")}
        (after,) = train(folder, "tuned", {**source, **SHORT, "finetune": True}, change=in_float64)
        found[name] = source, after["lm_loss"], before["lm_loss"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_sparse_model_begins_as_the_dense_one(case: str, dense: Any, tmp_path: Path) -> None:
    ranks, activation, keys = CASES[case]
    source, loss, untrained = dense[activation]
    (made,) = train(tmp_path, "made", {**source, **keys, **SAVE}, ranks=ranks, change=in_float64)
    assert made["lm_loss"] == pytest.approx(loss, rel=1e-12)
    assert made["lm_loss"] != pytest.approx(untrained, rel=1e-3)


def test_a_later_start_goes_on_from_the_sparse_model(dense: Any, tmp_path: Path) -> None:
    keys = {**dense["swiglu"][0], **WHOLE, **SAVE, "train_iters": 2}
    straight = train(tmp_path, "straight", keys)
    train(tmp_path, "cut", {**keys, "exit_interval": 1})
    resumed = train(tmp_path, "cut", {**keys, "auto_continue_train": True})
    assert [row["lm_loss"] for row in resumed] == [row["lm_loss"] for row in straight]
    assert [row["iteration"] for row in resumed] == [1, 2]


def test_a_dense_model_in_parts_of_its_ranks_is_refused(tmp_path: Path) -> None:
    train(tmp_path, "dense", {**SAVE, "ckpt_format": "torch"})
    keys = {"load": str(tmp_path / "g" / "u" / "dense" / "ckpt"), **WHOLE, **SAVE, "ckpt_format": "torch"}
    with pytest.raises(AssertionError, match="moe_use_upcycling reads checkpoints of ckpt_format torch_dist"):
        train(tmp_path, "made", keys)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"ffn_hidden_size": 32, "num_layers": 3}, "num_layers is 2 there and 3 here, ffn_hidden_size is 64 there and 32 here"),
        ({"load": "made"}, "this one has 4 experts already: set moe_use_upcycling: false"),
    ],
    ids=["width", "experts"],
)
def test_the_checkpoint_of_another_model_is_refused(other: Keys, said: str, dense: Any, tmp_path: Path) -> None:
    keys = {**dense["swiglu"][0], **WHOLE, **SAVE}
    if "load" in other:
        train(tmp_path, "made", keys)
        other = {"load": str(tmp_path / "g" / "u" / "made" / "ckpt"), "finetune": True}
    with pytest.raises(AssertionError, match=said):
        train(tmp_path, "remade", {**keys, **other})
