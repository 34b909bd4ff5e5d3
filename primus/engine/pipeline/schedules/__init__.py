"""Pipeline schedules: pure functions from sizes to tables. Nothing here knows torch.

- `table.py`: the table's types
- `plan.py`: one rank's part of a table, with what it receives and sends
- `algorithms.py`: `build_schedule` by name
- `one_f_one_b.py`, `one_f_one_b_v.py`, `group_interleaved.py`: schedules with whole backwards, or weight gradients at once
- `zero_bubble.py`, `heuristic.py`, `controllable.py`: schedules that postpone weight gradients
- `offload.py`: activations that leave for the host and come back
- `apart.py`: whole backwards taken apart
- `pause.py`: where ranks learn whether the step before stands
- `forwards.py`: evaluation
- `simulate.py`: times, waits and peaks of a table, and the proof that it can run
- `picture.py`: tables as text and pictures
"""

from primus.engine.config.pipeline import ALGORITHMS, Algorithm
from primus.engine.pipeline.schedules.algorithms import build_schedule, schedule_of
from primus.engine.pipeline.schedules.forwards import forwards
from primus.engine.pipeline.schedules.offload import OFFLOADING
from primus.engine.pipeline.schedules.pause import Pause, pause_of, pauses
from primus.engine.pipeline.schedules.plan import Message, RankPlan, Task, rank_plan
from primus.engine.pipeline.schedules.simulate import Costs, ScheduleError, Simulation, peak_activations, simulate
from primus.engine.pipeline.schedules.table import Op, Row, Schedule

__all__ = [
    "ALGORITHMS",
    "OFFLOADING",
    "Algorithm",
    "Costs",
    "Message",
    "Op",
    "Pause",
    "RankPlan",
    "Row",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Task",
    "build_schedule",
    "forwards",
    "pause_of",
    "pauses",
    "peak_activations",
    "rank_plan",
    "schedule_of",
    "simulate",
]
