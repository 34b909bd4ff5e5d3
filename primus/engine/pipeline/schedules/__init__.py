"""Pipeline schedules: pure functions from sizes to tables. Nothing here knows torch.

- `table.py`: the table's types, and the row of a run without pipelining
- `algorithms.py`: `build_schedule` by name
- `one_f_one_b.py`, `zero_bubble.py`, `heuristic.py`, `controllable.py`: the schedules
- `simulate.py`: times, waits and peaks of a table, and the proof that it can run
- `picture.py`: tables as text and pictures
"""

from primus.engine.pipeline.schedules.algorithms import ALGORITHMS, Algorithm, build_schedule
from primus.engine.pipeline.schedules.simulate import Costs, ScheduleError, Simulation, simulate
from primus.engine.pipeline.schedules.table import Op, Row, Schedule, one_stage

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Costs",
    "Op",
    "Row",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "build_schedule",
    "one_stage",
    "simulate",
]
