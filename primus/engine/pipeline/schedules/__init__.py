"""Pipeline schedules: pure functions from sizes to tables. Nothing here knows torch.

- `table.py`: the table's type, and the schedule of a single stage
"""

from primus.engine.pipeline.schedules.table import Op, Row, one_stage

__all__ = ["Op", "Row", "one_stage"]
