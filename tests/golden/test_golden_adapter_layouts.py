"""Adapters on every kind of layout train to the numbers of one process in float64, and nothing but adapters moves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train
from test_golden_layouts import assert_equal, in_float64

from primus.engine.config import ConfigContainer, PEFTConfig
from primus.engine.parallel.mesh import build_mesh
from primus.engine.parallel.sharding import global_parameters
from primus.engine.train.assemble import Parts, assemble

Keys = dict[str, Any]
MODEL: Keys = {
    "num_layers": 4,
    "hidden_size": 16,
    "ffn_hidden_size": 24,
    "group_query_attention": True,
    "num_query_groups": 2,
    "global_batch_size": 4,
    "train_iters": 2,
    "init_method_std": 0.2,
}
MOE: Keys = {
    **MODEL,
    "num_experts": 4,
    "moe_ffn_hidden_size": 12,
    "moe_router_topk": 2,
    "moe_aux_loss_coeff": 0.0,
    "moe_token_dispatcher_type": "alltoall",
    "moe_layer_freq": "([0]+[1]*3)",
}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
ZERO1: Keys = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
META: Keys = {"init_model_with_meta_device": True}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LORA = PEFTConfig(lora_B_init_method="normal", dim=4, alpha=2.0, target_modules=())
DORA = replace(LORA, scheme="dora")
# All of the first stage is frozen then, and the last layer of the second.
ONE_LAYER = replace(LORA, target_modules=("*.layers.2.*",))
OWN = replace(LORA, share_expert_adapters=False)
EXPERTS = replace(LORA, target_modules=("*.experts.*",), dropout=0.3)
OWN_LENGTHS = replace(OWN, scheme="dora")
ALL_OF_EXPERTS = replace(EXPERTS, scheme="dora")
BEHIND = replace(OWN, target_modules=("*.experts.*",), dropout=0.3, dropout_position="post")

CASES: dict[str, tuple[Keys, PEFTConfig, Keys]] = {
    "dora zero3": (MODEL, DORA, ZERO3),
    "lora zero3 meta": (MODEL, LORA, {**ZERO3, **META}),
    "dora fsdp2 recomputed": (MODEL, DORA, {"use_torch_fsdp2": True, **FULL}),
    "pp2 first stage frozen": (MODEL, ONE_LAYER, {"pipeline_model_parallel_size": 2, "pp_warmup": True}),
    "cp2 zero1 overlapped": (MODEL, LORA, {"context_parallel_size": 2, **ZERO1, "overlap_param_gather": True}),
    "shared ep2": (MOE, LORA, {"expert_model_parallel_size": 2}),
    "shared tp2 ep2": (MOE, LORA, {**TP2, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}),
    "shared tp2 etp2": (MOE, LORA, {**TP2, "expert_tensor_parallel_size": 2}),
    "own lengths ep2": (MOE, OWN_LENGTHS, {"expert_model_parallel_size": 2}),
    # Values that experts drop are the same wherever a token comes to, and however often.
    "dora and dropout tp2 etp2": (MOE, ALL_OF_EXPERTS, {**TP2, "expert_tensor_parallel_size": 2}),
    "dropout ep2 cp2": (MOE, EXPERTS, {"expert_model_parallel_size": 2, "context_parallel_size": 2}),
    "dropout behind pp2 recomputed": (MOE, BEHIND, {"pipeline_model_parallel_size": 2, **FULL}),
    "own ep2 zero1": (MOE, OWN, {"expert_model_parallel_size": 2, "use_distributed_optimizer": True}),
}


def adapting(peft: PEFTConfig) -> Callable[[ConfigContainer], ConfigContainer]:
    return lambda config: replace(in_float64(config), peft=peft)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Keys, PEFTConfig], list[dict[str, Any]]]:
    known: dict[str, list[dict[str, Any]]] = {}

    def rows(keys: Keys, peft: PEFTConfig) -> list[dict[str, Any]]:
        name = f"{'moe' if keys is MOE else 'dense'}-{hash(peft)}"
        if name not in known:
            known[name] = train(tmp_path_factory.mktemp("reference"), name, keys, change=adapting(peft))
        return known[name]

    return rows


@pytest.mark.parametrize("case", list(CASES))
def test_adapters_train_like_one_process_in_float64(case: str, reference: Any, tmp_path: Path) -> None:
    keys, peft, layout = CASES[case]
    rows = train(tmp_path, "run", {**keys, **layout}, ranks=2, change=adapting(peft))
    assert_equal(rows, reference(keys, peft), 1e-12)


def three_steps(rank: int, config: ConfigContainer) -> tuple[dict[str, Any], dict[str, Any], set[str], int]:
    """Return the weights before and after as this rank holds them, what has optimizer state, and the bytes of whole weights
    between steps."""
    mesh = build_mesh(config.model.parallel, config.dist, torch.device("cpu"))
    parts = assemble(config, mesh, None)
    assert parts.trainer is not None
    buffers, optimizer = parts.trainer.buffers, parts.trainer.optimizer
    before = held(parts)
    tokens = torch.randint(95, (2, 8), generator=torch.Generator().manual_seed(rank))
    positions = torch.arange(8).expand_as(tokens)
    for _ in range(3):
        buffers.zero_grad()
        parts.chunks[0](tokens, positions, labels_BS=tokens, loss_mask_BS=torch.ones(2, 8)).backward()
        buffers.finish_grad_sync()
        optimizer.step()
    states = {name.split(".", 3)[3] for name in optimizer.state_shards()}
    memory = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for _, p in global_parameters(parts.chunks)}
    return before, held(parts), states, sum(memory.values())


def held(parts: Parts) -> dict[str, Any]:
    assert parts.trainer is not None
    shards = parts.trainer.buffers.weight_shards()
    return {name: [chunk.data.clone() for chunk in each.chunks] for name, each in shards.items()}


@pytest.mark.parametrize("layout", ["zero1", "zero3"])
def test_nothing_but_adapters_moves(layout: str, tmp_path: Path) -> None:
    keys = {**MODEL, "weight_decay": 0.1, "use_distributed_optimizer": True, **(ZERO3 if layout == "zero3" else {})}
    config = adapting(replace(LORA, lora_B_init_method="zero"))(build_container(tmp_path, "run", 2, keys))
    config = replace(config, model=replace(config.model, vocab_size=95))
    for before, after, states, memory in run_ranks(three_steps, 2, config):
        assert before.keys() == after.keys()
        moved = {name for name, chunks in before.items() if not all(map(torch.equal, chunks, after[name]))}
        assert all(".adapter." in name for name in moved | states)
        assert {name for name in before if "linear_out" in name} <= moved
        assert (memory == 0) == (layout == "zero3"), "whole weights are in memory where a unit runs, and only then"
