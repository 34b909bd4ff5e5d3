"""A signal to the whole process group, loader workers included, still ends in a checkpoint of the finished step."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from programs import Program

METRICS = Path("out/amd/ann/tiny/metrics.jsonl")
WORDS = ("num_workers=2", "exit_signal_handler=true", "save=checkpoints", "train_iters=60", "exit_interval=12")


def rows() -> list[dict[str, float]]:
    return [json.loads(line) for line in METRICS.read_text().splitlines()] if METRICS.exists() else []


def test_sigterm_to_the_group_saves_and_the_resumed_run_is_the_straight_one(start: Callable[..., Program]) -> None:
    def finish(program: Program) -> str:
        code, said = program.end()
        assert code == 0, said
        return said

    finish(start(*WORDS, "save=straight"))
    expected = [(row["iteration"], row["lm_loss"], row["grad_norm"]) for row in rows()]
    assert len(expected) == 12
    METRICS.unlink()
    program = start(*WORDS)
    while len(rows()) < 3:
        assert program.poll() is None
        time.sleep(0.01)
    os.killpg(program.pid, signal.SIGTERM)
    assert "exiting program after receiving SIGTERM." in finish(program)
    assert 3 <= len(rows()) < 12
    finish(start(*WORDS, "load=out/amd/ann/tiny/checkpoints"))
    assert [(row["iteration"], row["lm_loss"], row["grad_norm"]) for row in rows()] == expected
