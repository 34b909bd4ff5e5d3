"""overlap_moe_expert_parallel_comm: two microbatches take turns, and every number stays what it was to the bit."""

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, train, train_rank
from test_golden_layouts import in_float64

from primus.engine.config import ConfigContainer
from primus.engine.parallel.exchange import Exchange
from primus.engine.parallel.lanes import Lane

pytestmark = pytest.mark.slow  # whole runs

MODEL: dict[str, Any] = {
    "num_layers": 2,
    "num_experts": 4,
    "moe_ffn_hidden_size": 16,
    "moe_shared_expert_intermediate_size": 8,
    "moe_router_topk": 2,
    "moe_aux_loss_coeff": 0.01,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 2,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "init_method_std": 0.2,
    "train_iters": 2,
}
TURNS: dict[str, Any] = {"overlap_moe_expert_parallel_comm": True}


@pytest.mark.parametrize("keys", [{}, {"moe_token_dispatcher_type": "flex", "overlap_grad_reduce": True}], ids=str)
def test_turns_change_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    rows = {
        name: train(tmp_path, name, {**MODEL, **keys, **more}, ranks=2, change=in_float64)
        for name, more in (("line", {}), ("turns", TURNS))
    }
    for one, other in zip(rows["line"], rows["turns"], strict=True):
        names = ("lm_loss", "grad_norm", "load_balancing_loss")
        assert [one[name] for name in names] == [other[name] for name in names]


def under_way(_rank: int, config: ConfigContainer) -> int:
    """Train and return the most exchanges that were under way when one was waited for."""
    open_ones, most = 0, 0
    begin, end = Exchange.begin, Exchange.end

    def noted_begin(self: Exchange, *arguments: Any) -> Any:
        nonlocal open_ones
        open_ones += 1
        return begin(self, *arguments)

    def noted_end(self: Exchange, lane: Lane) -> Any:
        nonlocal open_ones, most
        arrived = end(self, lane)
        most = max(most, open_ones)
        open_ones -= 1
        return arrived

    Exchange.begin, Exchange.end = noted_begin, noted_end  # type: ignore[method-assign]
    train_rank(_rank, config)
    assert open_ones == 0
    return most


def test_one_line_works_while_the_other_waits(tmp_path: Path) -> None:
    """Rows and weights of one microbatch travel at a time; of two, where they take turns."""
    found = [
        run_ranks(under_way, 2, build_container(tmp_path, name, 2, {**MODEL, **more}))
        for name, more in (("line", {}), ("turns", TURNS))
    ]
    assert found[0] == [2, 2]
    assert min(found[1]) > 2
