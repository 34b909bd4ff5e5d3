"""The plan, which is arithmetic, against the rehearsal, which builds and runs a rank: both say the same of its memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import build_container

from primus.core.plan import Memory, plan_of
from primus.engine.config import PEFTConfig
from primus.engine.rehearsal import record
from primus.engine.rehearsal.rehearse import rehearse

BASE: dict[str, Any] = {
    "micro_batch_size": 1,
    "bf16": True,
    "num_layers": 4,
    "hidden_size": 256,
    "ffn_hidden_size": 768,
    "num_attention_heads": 8,
    "kv_channels": 32,
    "group_query_attention": True,
    "num_query_groups": 2,
    "seq_length": 512,
    "max_position_embeddings": 512,
    "global_batch_size": 16,
    "cross_entropy_loss_fusion": True,
}
MOE = {
    "num_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 192,
    "moe_shared_expert_intermediate_size": 192,
    "moe_token_dispatcher_type": "alltoall",
}
MLA = {
    "multi_latent_attention": True,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_head_dim": 32,
    "qk_pos_emb_head_dim": 16,
    "v_head_dim": 32,
    "group_query_attention": False,
    "num_query_groups": None,
}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "use_distributed_optimizer": True}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
FSDP = {
    "use_megatron_fsdp": True,
    "use_distributed_optimizer": True,
    "data_parallel_sharding_strategy": "optim_grads_params",
}
LORA = PEFTConfig(dim=8)
CASES: dict[str, tuple[int, dict[str, Any], PEFTConfig | None]] = {
    "dense": (1, {"qk_layernorm": True, "hidden_dropout": 0.1}, None),
    "whole logits, fp32": (1, {"bf16": False, "cross_entropy_loss_fusion": False}, None),
    "stages": (4, {"pipeline_model_parallel_size": 4, "num_layers": 8}, None),
    "recomputed": (1, {**FULL, "num_layers": 8}, None),
    "scores": (1, {"attention_backend": "unfused"}, None),
    "experts": (2, {**MOE, "expert_model_parallel_size": 2, "use_distributed_optimizer": True}, None),
    "experts once": (2, {**MOE, "expert_model_parallel_size": 2, "moe_token_dispatcher_type": "flex"}, None),
    "latent, experts": (2, {**MLA, **MOE, **TP2, "mtp_num_layers": 1}, None),
    "lora": (2, {**TP2, "num_layers": 8}, LORA),
    "lora, some linears": (1, {"num_layers": 8}, replace(LORA, target_modules=("*.layers.4.*.linear_qkv", "linear_proj"))),
    "lora, experts": (2, {**MOE, "expert_model_parallel_size": 2}, replace(LORA, share_expert_adapters=False, dropout=0.1)),
    "dora, experts": (2, {**MOE, "expert_model_parallel_size": 2}, replace(LORA, dim=32, scheme="dora", dropout=0.1)),
    "lora, drops results": (1, {"num_layers": 8}, replace(LORA, dropout=0.1, dropout_position="post")),
    "dora, latent": (1, MLA, replace(LORA, scheme="dora", target_modules=())),
    "lora, fsdp": (4, {**FSDP, "num_layers": 8}, LORA),
}


def both(folder: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> tuple[Memory, record.Memory]:
    """Return what both say of rank 0."""
    world_size, overrides, peft = CASES[case]
    config = build_container(folder, "x", world_size, {**BASE, **overrides})
    config = replace(config, model=replace(config.model, vocab_size=2000), peft=peft)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    return plan_of(config, world_size).places[0].memory, rehearse(config).memory


@pytest.mark.parametrize("case", CASES)
def test_the_plan_counts_what_the_rehearsal_finds(tmp_path, monkeypatch, case):
    plan, found = both(tmp_path, monkeypatch, case)
    assert plan.activations == pytest.approx(found.activations, rel=0.05)
    if "fsdp" not in case:
        assert plan.weights == pytest.approx(found.weights, rel=0.01)
    assert plan.gradients == pytest.approx(found.gradients, rel=0.02)
    # Lengths of DoRA are of fp32, and have no main copy.
    assert plan.optimizer == pytest.approx(found.main_weights + found.optimizer_state, rel=0.03)
