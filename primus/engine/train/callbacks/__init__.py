"""Listeners of the loop.

- `evaluation.py`: validation and test
- `logging.py`: records for the sinks
- `stop.py`: signal, duration, interval
- `saving.py`: when checkpoints are written
- `collection.py`: manual garbage collection
- `profiling.py`: the profiler's window
- `memory.py`: memory after each iteration, and the allocations of one
"""
