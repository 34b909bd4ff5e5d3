"""`progress.txt` (`log_progress`): one line for each start, save and deletion of a run, in the checkpoint folder."""

import os
from datetime import datetime
from pathlib import Path

__all__ = ["append_progress", "saved_message"]


def append_progress(base: Path, message: str, *, world_size: int) -> None:
    """Append a line; the first rank calls it."""
    base.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    job = os.environ.get("SLURM_JOB_ID", "")
    with (base / "progress.txt").open("a", encoding="utf-8") as stream:
        stream.write(f"{stamp}\tJob ID: {job}\t# GPUs: {world_size}\t{message}\n")


def saved_message(*, iteration: int, job_tflops: float, cumulative_tflops: float, flops: float, tokens: float) -> str:
    """Return the line of a save; throughputs are TFLOP/s of one device, `flops` and `tokens` totals of the run."""
    return (
        f"Saved checkpoint\tIteration: {iteration}\tJob throughput: {job_tflops:.1f} TFLOP/s/GPU\t"
        f"Cumulative throughput: {cumulative_tflops:.1f} TFLOP/s/GPU\tFloating-point operations: {flops:.2e}\t"
        f"Tokens (in billions): {tokens / 1e9:.2f}"
    )
