"""Which base adapters belong to, as what their checkpoint says of it, now and earlier."""

from pathlib import Path
from typing import Any

import pytest

from primus.engine.checkpoint.adapters import adapter_problems

PEFT = {"scheme": "lora", "dim": 4, "alpha": 8.0, "share_expert_adapters": True, "normalize_moe_lora": False}
BF16, FP32 = "torch.bfloat16", "torch.float32"
OURS = {"path": "b", "fingerprints": {BF16: "1"}}


@pytest.mark.parametrize(
    ("record", "is_another"),
    [
        ({"fingerprints": {BF16: "1", FP32: "2"}}, False),
        ({"fingerprints": {BF16: "3", FP32: "1"}}, True),
        ({"fingerprints": {FP32: "3"}}, False),
        ({"fingerprints": {}}, False),
        # As they were written at first.
        ({"fingerprint": "1", "dtype": BF16}, False),
        ({"fingerprint": "3", "dtype": BF16}, True),
        ({"fingerprint": "3", "dtype": FP32}, False),
        ({"fingerprint": None, "dtype": None}, False),
    ],
)
def test_fingerprints_of_one_dtype_are_compared(record: dict[str, Any], is_another: bool) -> None:
    saved = {"container": {"peft": PEFT}, "base": {"path": "a", **record}}
    problems = adapter_problems(Path("ckpt"), saved, {"peft": PEFT}, OURS)
    assert [("belong to other base weights" in each) for each in problems] == [True] * is_another
