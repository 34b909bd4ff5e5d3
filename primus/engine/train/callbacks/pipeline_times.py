"""`PipelineTimes` keeps when each stage worked on what, and writes it when the run ends (`dump_pp_data`)."""

import json
import os
from pathlib import Path
from typing import Any

from primus.engine.config import ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.device_memory import peak_bytes
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.pipeline import Pipeline
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["PipelineTimes"]

_NAMES = {"F": "fwd", "B": "bwd", "W": "wgrad"}


class PipelineTimes(Callback):
    """One file a rank of the first replica: `pp_rank_<rank>.json`, milliseconds since each step began.

    `config.json` beside them says what run it was. The folder is DUMP_PP_DIR, or `pp_data` in the run folder.
    """

    def __init__(self, config: ConfigContainer, pipeline: Pipeline, mesh: Mesh) -> None:
        self._config, self._pipeline, self._mesh = config, pipeline, mesh
        self._steps: dict[int, dict[str, Any]] = {}

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        recorder = self._pipeline.recorder
        assert recorder is not None
        gigabytes = peak_bytes(self._mesh.device) / 2**30
        step: dict[str, Any] = {"total": max(end for _, _, end in recorder.events), "memory": gigabytes}
        for kind, name in _NAMES.items():
            events = [event for event in recorder.events if event[0].kind == kind]
            step[f"{name}_start"], step[f"{name}_end"] = [e[1] for e in events], [e[2] for e in events]
            step[f"{name}_minibatch"], step[f"{name}_chunk"] = [e[0].microbatch for e in events], [e[0].chunk for e in events]
        self._steps[loop.state.iteration] = step

    def close(self, *, failed: bool) -> None:
        if not self._steps:
            return
        folder = Path(os.environ.get("DUMP_PP_DIR") or Path(self._config.run.folder) / "pp_data")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"pp_rank_{self._mesh.rank}.json").write_text(json.dumps(self._steps))
        if self._mesh.rank == 0:
            (folder / "config.json").write_text(json.dumps(self._facts()))

    def _facts(self) -> dict[str, int]:
        layout, train = self._mesh.layout, self._config.train
        return {
            "world_size": layout.world_size,
            "dp_size": layout.data,
            "tp_size": layout.tensor,
            "ep_size": layout.expert,
            "pp_size": layout.pipeline,
            "vp_size": self._config.model.pipeline.num_chunks,
            "num_mbs": BatchPlan.of(train, layout.data).num_microbatches(train.train_samples or 0),
            "train_iters": train.train_iters,
        }
