"""What routers do depends on tokens alone: not on how a batch is cut, where experts lie, what is computed twice, or a pause."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from runs import train
from test_golden_experts import EP2, FULL, LOSSES, MODEL, Keys
from test_golden_layouts import in_float64

from primus.engine.checkpoint.dist_format import read_metadata, stored_tensors
from primus.engine.checkpoint.files import Checksums

pytestmark = pytest.mark.slow  # whole runs

SHORT: Keys = {**MODEL, "num_layers": 2, "moe_layer_freq": 1, "train_iters": 2, "eval_iters": 0, "global_batch_size": 4}


def compared(rows: list[dict[str, Any]], *more: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("lm_loss", "grad_norm", *more)} for row in rows]


def close(rows: list[dict[str, Any]]) -> list[Any]:
    return [pytest.approx(row, rel=1e-12) for row in rows]


@pytest.mark.parametrize("per_token", [True, False])
def test_a_loss_over_sequences_does_not_shrink_with_the_microbatch(per_token: bool, tmp_path: Path) -> None:
    keys = {**SHORT, "moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.5}
    keys |= {"calculate_per_token_loss": per_token}
    names = ("seq_load_balancing_loss", "z_loss")
    ones, fours = (
        compared(train(tmp_path, f"m{size}", {**keys, "micro_batch_size": size}, change=in_float64), *names) for size in (1, 4)
    )
    assert fours == close(ones)
    assert ones[0]["lm_loss"] != ones[1]["lm_loss"]


def test_losses_are_told_layer_by_layer_on_any_stage(tmp_path: Path) -> None:
    keys = {**SHORT, "train_iters": 1, "moe_per_layer_logging": True}
    (alone,), (divided,) = (
        train(tmp_path, f"pp{ranks}", {**keys, "pipeline_model_parallel_size": ranks}, ranks=ranks, change=in_float64)
        for ranks in (1, 2)
    )
    for name in LOSSES:
        layers = [f"moe/{name}_layer_{number}" for number in (0, 1)]
        assert alone[name] == pytest.approx(sum(alone[layer] for layer in layers) / 2, rel=1e-12)
        assert [divided[layer] for layer in layers] == pytest.approx([alone[layer] for layer in layers], rel=1e-12)
        assert alone[layers[0]] != alone[layers[1]]


CAPPED: Keys = {**SHORT, "moe_expert_capacity_factor": 0.75, "moe_shared_expert_intermediate_size": None}


@pytest.mark.parametrize(
    "more",
    [{"moe_token_drop_policy": "position"}, {"moe_pad_expert_input_to_capacity": True}],
    ids=["position", "padded"],
)
def test_who_is_dropped_does_not_depend_on_where_experts_are(more: Keys, tmp_path: Path) -> None:
    """Experts get different numbers of tokens from each rank, and every rank ends."""
    keys = {**CAPPED, **more}
    here = train(tmp_path, "here", keys, ranks=2, change=in_float64)
    there = train(tmp_path, "there", {**keys, **EP2}, ranks=2, change=in_float64)
    assert compared(there, *LOSSES) == close(compared(here, *LOSSES))


TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}
CP2: Keys = {"context_parallel_size": 2}
SINKHORN: Keys = {
    **SHORT,
    "moe_router_load_balancing_type": "sinkhorn",
    "moe_aux_loss_coeff": 0.0,
    "moe_router_score_function": "softmax",
    "moe_router_enable_expert_bias": False,
}


@pytest.mark.parametrize(
    ("keys", "layout"),
    [({**CAPPED, "moe_token_drop_policy": "position"}, CP2), (CAPPED, TP2), (SINKHORN, {**CP2, **EP2})],
    ids=["position-cp2", "probs-tp2", "sinkhorn-cp2"],
)
def test_who_gets_an_expert_does_not_depend_on_how_sequences_are_divided(keys: Keys, layout: Keys, tmp_path: Path) -> None:
    keys = {**keys, "micro_batch_size": 2}
    alone = train(tmp_path, "alone", keys, change=in_float64)
    divided = train(tmp_path, "divided", {**keys, **layout}, ranks=2, change=in_float64)
    assert compared(divided, "z_loss") == close(compared(alone, "z_loss"))
    if layout == TP2:
        (all_come,) = train(tmp_path, "all", {**keys, "train_iters": 1, "moe_expert_capacity_factor": None}, change=in_float64)
        assert all_come["lm_loss"] != alone[0]["lm_loss"]


def test_a_warm_up_counts_for_nothing(tmp_path: Path) -> None:
    keys = {**SHORT, "pipeline_model_parallel_size": 2}
    cold, warm = (train(tmp_path, f"warm{flag}", {**keys, "pp_warmup": flag}, ranks=2) for flag in (False, True))
    assert compared(warm, *LOSSES) == compared(cold, *LOSSES)


NOISY: Keys = {**SHORT, "moe_input_jitter_eps": 0.2}


def test_a_layer_that_is_computed_again_meets_the_same_noise_and_counts_once(tmp_path: Path) -> None:
    kept, again = (train(tmp_path, name, {**NOISY, **more}) for name, more in (("kept", {}), ("again", FULL)))
    assert compared(again, *LOSSES) == compared(kept, *LOSSES)
    assert train(tmp_path, "plain", {**SHORT, "train_iters": 1})[0]["lm_loss"] != kept[0]["lm_loss"]


def test_biases_and_noise_go_on_to_the_bit_after_a_pause(tmp_path: Path) -> None:
    keys = {**NOISY, **EP2, "bf16": True, "train_iters": 2, "save": "ckpt", "save_interval": 100}
    straight = train(tmp_path, "straight", keys, ranks=2)
    train(tmp_path, "cut", {**keys, "exit_interval": 1}, ranks=2)
    resumed = train(tmp_path, "cut", {**keys, "auto_continue_train": True}, ranks=2)
    assert compared(resumed, *LOSSES) == compared(straight, *LOSSES)
    saved, other = (saved_bias(tmp_path / "g" / "u" / name / "ckpt" / "iter_0000002") for name in ("straight", "cut"))
    assert saved.dtype == torch.float32
    assert saved.abs().sum() > 0
    assert torch.equal(saved, other)


def saved_bias(folder: Path) -> torch.Tensor:
    """Return the bias of a checkpoint's first router."""
    stored = stored_tensors(read_metadata(folder, Checksums.read(folder)))
    (name,) = (name for name in stored if name.endswith("layers.0.mlp.router.expert_bias"))
    tensor = torch.empty(stored[name].global_shape, dtype=stored[name].dtype)
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({name: tensor}, checkpoint_id=folder, no_dist=True)
    return tensor
