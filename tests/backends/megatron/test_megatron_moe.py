"""Keys of mixtures of experts: what reaches the container, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

MOE: dict[str, Any] = {"num_experts": 8, "moe_ffn_hidden_size": 16}


@pytest.mark.parametrize(
    ("freq", "layers"),
    [
        (1, (0, 1, 2, 3)),
        (2, (0, 2)),
        ("3", (0, 3)),
        ([0, 1, 1, 0], (1, 2)),
        ("([0]*1+[1]*3)", (1, 2, 3)),
        ("[0,1]*2", (1, 3)),
        ("2*[1]+[0, 0]", (0, 1)),
    ],
)
def test_moe_layer_freq_says_which_layers_are_sparse(build: Any, freq: Any, layers: tuple[int, ...]) -> None:
    assert build({**MOE, "moe_layer_freq": freq}).config.model.moe.layers == layers


@pytest.mark.parametrize(
    "freq", ["__import__('os')", "[0]*9999999999", "[0, 1, 1, 2]", "[1]*3", "0", "[[0]]*4", "[True]*4", "[-1]*4"]
)
def test_moe_layer_freq_is_never_run(problems_of: Any, freq: str) -> None:
    (problem,) = problems_of({**MOE, "moe_layer_freq": freq})
    assert "moe_layer_freq" in problem
    assert "exp.yaml:" in problem


def test_dense_models_have_no_sparse_layers(build: Any) -> None:
    for experts in (None, 0):
        moe = build({"num_experts": experts}).config.model.moe
        assert (moe.num_experts, moe.layers, moe.ffn_hidden_size) == (None, (), None)


def test_derived_values_reach_the_container(build: Any) -> None:
    moe = build({"num_experts": 8, "moe_expert_capacity_factor": -1.0, "moe_router_dtype": "fp64"}).config.model.moe
    assert moe.ffn_hidden_size == 64, "that of dense layers"
    assert moe.expert_capacity_factor is None
    assert moe.router_dtype == "float64"
    assert moe.router_load_balancing_type == ("aux_loss",)
    listed = {"moe_router_load_balancing_type": ["seq_aux_loss", "global_aux_loss"], "moe_aux_loss_coeff": [0.1, 0.2]}
    moe = build({**MOE, **listed}).config.model.moe
    assert list(zip(moe.router_load_balancing_type, moe.aux_loss_coeff, strict=True)) == [
        ("seq_aux_loss", 0.1),
        ("global_aux_loss", 0.2),
    ]


def test_the_plain_router_has_no_cap_and_no_turns(build: Any) -> None:
    keys = {**MOE, "moe_router_force_load_balancing": True, "router_logit_softcapping": 30.0}
    moe = build(keys).config.model.moe
    assert (moe.router_force_load_balancing, moe.router_logit_softcapping) == ("even", 30.0)
    assert (
        build({**keys, "moe_router_force_load_balancing_type": "uniform"}).config.model.moe.router_force_load_balancing
        == "uniform"
    )
    moe = build({**keys, "disable_primus_topk_router": True}).config.model.moe
    assert (moe.router_force_load_balancing, moe.router_logit_softcapping) == ("uniform", None)
    assert build({**MOE, "router_logit_softcapping": 0.0}).config.model.moe.router_logit_softcapping is None


EP2 = {"expert_model_parallel_size": 2}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
UPCYCLED = {"moe_use_upcycling": True, "load": "dense", "save": "c", "save_interval": 1}
REFUSED: list[tuple[str, int, dict[str, Any], str]] = [
    ("no-experts", 2, {"num_experts": None, **EP2}, "expert_model_parallel_size 2 (exp.yaml:"),
    (
        "divide",
        3,
        {"expert_model_parallel_size": 3, "global_batch_size": 6},
        "is not divisible by expert_model_parallel_size 3",
    ),
    ("divide-nearest", 3, {"expert_model_parallel_size": 3, "global_batch_size": 6}, "use 2 or 4 ranks"),
    ("matrices", 4, {"moe_ffn_hidden_size": 18, "expert_tensor_parallel_size": 4}, "moe_ffn_hidden_size 18 (exp.yaml:"),
    ("matrices-tp", 2, {**TP2, "moe_ffn_hidden_size": 17}, "is not divisible by tensor_model_parallel_size 2"),
    ("tokens", 2, {"tensor_model_parallel_size": 2, "sequence_parallel": False}, "needs sequence_parallel: true"),
    (
        "instances",
        4,
        {**EP2, "expert_model_parallel_size": 4, "num_distributed_optimizer_instances": 2},
        "the 1 copies of an expert",
    ),
    (
        "world",
        2,
        {"expert_model_parallel_size": 4},
        "the run has 2 processes, no multiple of expert_model_parallel_size 4 (exp.yaml:",
    ),
    ("world-both", 2, {**EP2, "expert_tensor_parallel_size": 2}, " = 4: start 4 (--nproc-per-node), or change the degree"),
    ("world-one", 1, EP2, "the run has 1 process, no multiple of expert_model_parallel_size 2"),
    (
        "order",
        8,
        {**EP2, "pipeline_model_parallel_size": 2, "use_tp_pp_dp_mapping": True},
        "use_tp_pp_dp_mapping true (exp.yaml:",
    ),
    ("too-many", 1, {"moe_router_topk": 9}, "moe_router_topk 9"),
    ("groups-alone", 1, {"moe_router_group_topk": 2}, "needs moe_router_num_groups"),
    ("groups-divide", 1, {"moe_router_group_topk": 2, "moe_router_num_groups": 3}, "use 2 or 4 groups"),
    ("groups-best", 1, {"moe_router_group_topk": 5, "moe_router_num_groups": 4}, "choose at most 4"),
    (
        "groups-few",
        1,
        {"moe_router_group_topk": 1, "moe_router_num_groups": 8, "moe_router_topk": 2},
        "experts cannot come from",
    ),
    ("one", 1, {"moe_router_topk": 1}, "set moe_router_pre_softmax: true"),
    ("bias", 1, {"moe_router_enable_expert_bias": True}, "set moe_router_score_function: sigmoid"),
    ("pad", 1, {"moe_pad_expert_input_to_capacity": True}, "needs moe_expert_capacity_factor"),
    (
        "capacity",
        1,
        {"moe_expert_capacity_factor": 1.0, "moe_router_load_balancing_type": "sinkhorn"},
        "moe_expert_capacity_factor 1.0",
    ),
    ("sinkhorn", 1, {"moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0.1}, "set it to 0"),
    (
        "lists",
        1,
        {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": 0.1},
        "differ in length",
    ),
    (
        "mixed",
        1,
        {"moe_router_load_balancing_type": ["aux_loss", "none"], "moe_aux_loss_coeff": [0.1, 0.0]},
        "a list is of different losses",
    ),
    ("unbalancing", 1, {"moe_aux_loss_coeff": -0.1}, "moe_aux_loss_coeff -0.1 (exp.yaml:"),
    ("shared", 2, {**TP2, "moe_shared_expert_intermediate_size": 7}, "moe_shared_expert_intermediate_size 7"),
    (
        "overlap",
        2,
        {**EP2, "moe_shared_expert_overlap": True, "moe_token_dispatcher_type": "allgather"},
        "use alltoall or flex",
    ),
    ("gone", 1, {"moe_token_dispatcher_type": "alltoall_seq"}, "Did you mean alltoall?"),
    ("flex-alone", 1, {"moe_token_dispatcher_type": "flex"}, "needs ranks that share experts"),
    (
        "slices",
        2,
        {"pipeline_model_parallel_size": 2, "num_seq_splits": 2, "patch_zero_bubble": True},
        "routers look at whole sequences",
    ),
    (
        "early",
        2,
        {"pipeline_model_parallel_size": 2, "patch_zero_bubble": True, "enable_optimizer_post_validation": True},
        "enable_optimizer_post_validation true",
    ),
    ("zero", 1, {"moe_router_topk": 0}, "moe_router_topk"),
    ("no-layer", 1, {"moe_layer_freq": "[0]*4"}, "gives no layer to num_experts 8"),
    ("no-place", 1, {"moe_expert_capacity_factor": 0.0}, "drops every token"),
    ("upcycled-from", 1, {"moe_use_upcycling": True}, "needs the checkpoint of a dense model: set load"),
    ("upcycled-to", 1, {"moe_use_upcycling": True, "load": "dense"}, "needs save, so that a later start"),
    ("upcycled-width", 1, {**UPCYCLED, "moe_ffn_hidden_size": 48}, "(ffn_hidden_size) into experts of 48"),
    ("upcycled-copies", 1, {**UPCYCLED, "num_experts": 6}, "makes 4 experts of a copy of a layer"),
    ("upcycled-shared", 1, {**UPCYCLED, "moe_shared_expert_intermediate_size": 8}, "makes no shared expert"),
    ("score", 1, {"moe_router_score_function": "tanh"}, "moe_router_score_function"),
]


@pytest.mark.parametrize(("world_size", "keys", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(problems_of: Any, world_size: int, keys: dict[str, Any], message: str) -> None:
    problems = problems_of({**MOE, **keys}, world_size=world_size)
    assert any(message in problem for problem in problems), problems


def test_a_dense_model_gives_its_weights_alone(build: Any, problems_of: Any, tmp_path: Path) -> None:
    built = build({**MOE, **UPCYCLED})
    assert built.config.checkpoint.finetune
    assert any("STARTING OVER FROM WEIGHTS" in notice for notice in built.notices)
    (tmp_path / "run/c/iter_0000001").mkdir(parents=True)
    (problem,) = problems_of({**MOE, **UPCYCLED})
    assert "set auto_continue_train: true to go on from them" in problem
    build({**MOE, **UPCYCLED, "auto_continue_train": True})
