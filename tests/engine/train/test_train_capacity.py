"""A model that no machine holds is refused with its sizes; memory that runs out later is told in one line."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container

from primus.engine import worker
from primus.engine.config import ConfigContainer, serialize
from primus.engine.parallel.mesh import single_mesh
from primus.engine.train import pretrain
from primus.engine.train.capacity import check_capacity
from primus.errors import InputError

HUGE = 10**9


def container(folder: Path, overrides: Mapping[str, Any]) -> ConfigContainer:
    config = build_container(folder, "run", 1, overrides)
    return replace(config, model=replace(config.model, vocab_size=96))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"hidden_size": HUGE}, f"hidden_size {HUGE}"),
        ({"ffn_hidden_size": 10**4 * HUGE}, f"ffn_hidden_size {10**4 * HUGE}"),
        ({"num_experts": HUGE, "moe_router_topk": 2}, f"num_experts {HUGE}"),
    ],
    ids=["hidden", "ffn", "experts"],
)
def test_a_model_that_no_machine_holds_is_refused_with_its_sizes(
    overrides: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"a model of .*\b{said}\b.* the weights of a rank take [\d,]+ GiB, and it has"):
        check_capacity(container(tmp_path, overrides), single_mesh())
    check_capacity(container(tmp_path, {}), single_mesh())


def starved_rank(_rank: int, file: Path) -> int:
    """Return the exit code of a worker that asks for more memory than there is."""
    pretrain.pretrain = lambda *_, **__: torch.empty(2**60)  # type: ignore[assignment]
    return worker.main([str(file)])


def test_memory_that_runs_out_is_told_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = build_container(tmp_path, "starved", 1, {"micro_batch_size": 1})
    (tmp_path / "config.yaml").write_text(serialize.dump(config))
    assert run_ranks(starved_rank, 1, tmp_path / "config.yaml") == [3]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("memory ran out: ")
    assert "micro_batch_size 1, seq_length 32, hidden_size 32, num_layers 2" in line
    assert "Traceback" in Path(config.run.folder, "logs", "rank-0.log").read_text()
