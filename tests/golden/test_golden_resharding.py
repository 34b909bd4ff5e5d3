"""A checkpoint of any layout goes on in any other one, with its optimizer: the losses are those of a run that never stopped."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # several whole runs each

FSDP: dict[str, Any] = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
TP2: dict[str, Any] = {"tensor_model_parallel_size": 2}
PP2: dict[str, Any] = {"pipeline_model_parallel_size": 2}
CP2: dict[str, Any] = {"context_parallel_size": 2}
TIED: dict[str, Any] = {"untie_embeddings_and_output_weights": False}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "dp4": (4, {}),
    "dp4_replicated": (4, {"use_distributed_optimizer": False}),
    "dp4_instances": (4, {"num_distributed_optimizer_instances": 2, "overlap_grad_reduce": True, "ddp_bucket_size": 3000}),
    "tp2_pp2": (4, {**TP2, **PP2}),
    "pp2_interleaved": (4, {**PP2, "num_virtual_stages_per_pipeline_rank": 2}),
    "pp2_folded": (2, {**PP2, "patch_zero_bubble": True, "zero_bubble_v_schedule": True}),
    "cp2_tp2": (4, {**CP2, **TP2}),
    "zero2_pp2": (4, {**FSDP, **PP2, "data_parallel_sharding_strategy": "optim_grads"}),
    "zero3": (2, FSDP),
    "zero3_tp2": (4, {**FSDP, **TP2}),
}
MOVES = [
    ("tp2_pp2", "dp4"),
    ("cp2_tp2", "zero3"),
    ("zero3", "tp2_pp2"),
    ("zero3_tp2", "pp2_folded"),
    ("pp2_folded", "cp2_tp2"),
    ("dp4_instances", "zero2_pp2"),
    ("zero2_pp2", "one"),
    ("pp2_interleaved", "dp4_replicated"),
    ("dp4_replicated", "zero3_tp2"),
    ("one", "pp2_interleaved"),
]
DEEP: dict[str, Any] = {"num_layers": 4, "train_iters": 12}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("straight")
    return {
        tied: train(folder, f"tied-{tied}", {**DEEP, **(TIED if tied else {})}, change=in_float64) for tied in (False, True)
    }


@pytest.mark.parametrize(
    ("number", "source", "target"), [(i, *move) for i, move in enumerate(MOVES)], ids=["-to-".join(move) for move in MOVES]
)
def test_a_checkpoint_goes_on_in_another_layout(number: int, source: str, target: str, straight: Any, tmp_path: Path) -> None:
    tied = number % 2 == 0
    model = {**DEEP, **(TIED if tied else {})}
    ranks, keys = LAYOUTS[source]
    save = {"save": "ckpt", "save_interval": 2, "exit_interval": 2}
    train(tmp_path, "first", {**model, **keys, **save}, ranks=ranks, change=in_float64)
    ranks, keys = LAYOUTS[target]
    load = {"load": str(tmp_path / "g" / "u" / "first" / "ckpt")}
    rows = train(tmp_path, "second", {**model, **keys, **load}, ranks=ranks, change=in_float64)
    assert [row["iteration"] for row in rows] == list(range(3, 13))
    assert_equal(rows, straight[tied][2:], 1e-12)


SPARSE: dict[str, Any] = {
    "num_layers": 4,
    "train_iters": 6,
    "num_experts": 4,
    "moe_layer_freq": "([0]+[1]*3)",
    "moe_ffn_hidden_size": 16,
    "moe_router_topk": 2,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "moe_token_dispatcher_type": "alltoall",
    "init_method_std": 0.2,
}
EP2: dict[str, Any] = {"expert_model_parallel_size": 2}
SPARSE_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "pp2": (2, PP2),
    "ep2": (2, EP2),
    "ep2_zero3": (4, {**EP2, **FSDP}),
    "tp2_ep2_etp1": (2, {**TP2, **EP2, "expert_tensor_parallel_size": 1, "sequence_parallel": True}),
}


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(tmp_path_factory.mktemp("sparse"), "straight", SPARSE, change=in_float64)


@pytest.mark.parametrize(
    ("source", "target"), [("pp2", "ep2"), ("ep2", "tp2_ep2_etp1"), ("tp2_ep2_etp1", "ep2_zero3"), ("ep2_zero3", "one")]
)
def test_experts_go_on_on_other_ranks(source: str, target: str, sparse: Any, tmp_path: Path) -> None:
    """Their state and their biases too: from a pipeline to experts on ranks, from there to parts of matrices, and back."""
    ranks, keys = SPARSE_LAYOUTS[source]
    save = {"save": "ckpt", "save_interval": 2, "exit_interval": 2}
    train(tmp_path, "first", {**SPARSE, **keys, **save}, ranks=ranks, change=in_float64)
    ranks, keys = SPARSE_LAYOUTS[target]
    load = {"load": str(tmp_path / "g" / "u" / "first" / "ckpt")}
    rows = train(tmp_path, "second", {**SPARSE, **keys, **load}, ranks=ranks, change=in_float64)
    assert_equal(rows, sparse[2:], 1e-12)
