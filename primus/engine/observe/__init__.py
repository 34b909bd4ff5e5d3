"""What a run tells: listeners that receive records, and the figures in them. This door imports nothing.

- `sink.py`: `Sink`, what every listener looks like
- `console.py`, `metrics_file.py`, `tensorboard.py`, `trackers.py`: the listeners
- `scalars.py`: metric names as dashboards know them
- `averages.py`, `timers.py`, `memory.py`: figures
- `profiler.py`: torch.profiler over a window of iterations
- `allocations.py`: who allocated what
- `report.py`: curves of a finished run
"""
