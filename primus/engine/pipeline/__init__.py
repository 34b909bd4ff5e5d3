"""Order of forwards and backwards within a step. This door imports nothing: `schedules` starts without torch.

- `schedules/`: tables, without torch
- `runtime.py`: runs a table
"""
