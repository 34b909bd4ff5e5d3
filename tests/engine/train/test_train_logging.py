"""What a record says of an interval."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from primus.engine.config import LoggerConfig
from primus.engine.observe.sink import Sink
from primus.engine.observe.timers import TimerReport
from primus.engine.parallel.mesh import single_mesh
from primus.engine.trace import Trace
from primus.engine.train.callbacks.logging import Logging
from primus.engine.train.step import StepOutcome
from primus.engine.train.sums import BatchSums


class _Kept(Sink):
    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def write(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)


@pytest.mark.parametrize("is_tuning", [False, True])
def test_fine_tuning_tells_how_many_trained_tokens_pass_besides_all(is_tuning: bool) -> None:
    sink, mesh = _Kept(), single_mesh()
    timers = TimerReport(mesh.world, "minmax", level=0)
    logging = Logging(LoggerConfig(log_interval=2), mesh, is_tuning=is_tuning, sinks=[sink], timers=timers)
    loop: Any = SimpleNamespace(
        state=SimpleNamespace(iteration=1, consumed_train_samples=8),
        step=None,
        flops_of=lambda sums: sums.tokens,
        trace=Trace(),
    )
    logging.on_start(loop)
    for iteration, trained in enumerate((30.0, 50.0), 1):
        loop.state.iteration = iteration
        sums = BatchSums(loss=60.0, trained_tokens=trained, tokens=100.0 * iteration, squares=0.0)
        facts: dict[str, Any] = {"grad_norm": None, "num_zeros": None, "params_norm": None, "learning_rate": 0.1}
        logging.after_step(
            loop, StepOutcome(succeeded=True, loss=sums.mean_loss, loss_scale=1.0, batch_size=8, sums=sums, **facts)
        )
    (record,) = sink.records
    seconds = record["iteration_time_ms"] / 1e3
    assert record["tokens_per_second"] * seconds == pytest.approx(150.0)
    assert record["lm_loss"] == pytest.approx((2.0 + 1.2) / 2)
    if is_tuning:
        assert record["trained_tokens_per_second"] * seconds == pytest.approx(40.0)
    assert ("trained_tokens_per_second" in record) == is_tuning
