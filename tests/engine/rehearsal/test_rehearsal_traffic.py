"""What a rehearsal says a step exchanges is, call for call and byte for byte, what the step of a real run exchanges."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from ranks import run_ranks
from runs import build_container

from primus.engine.config import ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import build_mesh
from primus.engine.rehearsal.phases import Phases
from primus.engine.rehearsal.record import Collective
from primus.engine.rehearsal.rehearse import collective_records, counted_step, held_memory, rehearse
from primus.engine.train.assemble import assemble

TP_SP = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
PP = {"pipeline_model_parallel_size": 2}
LAYOUTS = {
    "tp": {"tensor_model_parallel_size": 2, "bf16": True},
    "tp+sp, distributed optimizer": {**TP_SP, "use_distributed_optimizer": True, "overlap_grad_reduce": True},
    "ring": {"context_parallel_size": 2},
    "gathered and exchanged context": {"context_parallel_size": 2, "cp_comm_type": ["allgather", "a2a"]},
    "tied stages": {**PP, "untie_embeddings_and_output_weights": False, "global_batch_size": 16},
    "tp+sp, stages, recompute": {
        **TP_SP,
        **PP,
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": 1,
    },
    "tp, interleaved stages": {
        "tensor_model_parallel_size": 2,
        **PP,
        "num_layers": 4,
        "num_virtual_stages_per_pipeline_rank": 2,
    },
    "sharded weights": {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
        "use_distributed_optimizer": True,
        "bf16": True,
        "global_batch_size": 20,
    },
}


@pytest.mark.parametrize("overrides", LAYOUTS.values(), ids=LAYOUTS)
def test_a_rehearsed_step_exchanges_and_holds_what_a_real_one_does(tmp_path, monkeypatch, overrides):
    config = build_container(tmp_path, "x", 4, {"cross_entropy_loss_fusion": True, **overrides})
    config = replace(config, model=replace(config.model, vocab_size=96))
    real = run_ranks(_real, 4, config)
    assert real[0][0]
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in (0, 3):
        monkeypatch.setenv("RANK", str(rank))
        assert _rehearsed(config) == real[rank]


Amounts = dict[tuple[str, int, str, str], tuple[int, int]]
Held = tuple[int, ...]


def _real(_rank: int, config: ConfigContainer) -> tuple[Amounts, Held]:
    """Train two steps, and count the second: the first learns when gradients are complete."""
    # Calls as on an accelerator; gloo has other ways for two of them.
    collectives._is_gloo = lambda group: False
    mesh = build_mesh(config.model.parallel, config.dist, torch.device("cpu"))
    parts = assemble(config, mesh, None)
    total = BatchPlan.of(config.train, mesh.layout.data).num_microbatches(0)
    counted_step(parts, total, Phases())
    amounts = counted_step(parts, total, Phases())
    return _amounts(collective_records({total: amounts}, total, mesh)), tuple(held_memory(parts).values())


def _rehearsed(config: ConfigContainer) -> tuple[Amounts, Held]:
    record = rehearse(config)
    m = record.memory
    # Nothing else stays but the tables of rotary positions.
    assert m.other <= 2 * 32 * 8 * 4 * 2
    return _amounts(record.collectives), (m.weights, m.gradients, m.main_weights, m.optimizer_state)


def _amounts(rows: Iterable[Collective]) -> Amounts:
    return {(row.axis, row.size, row.phase, row.kind): (row.count, row.num_bytes) for row in rows}
