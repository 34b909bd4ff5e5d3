"""A sparse model trained by Triton's kernels, in their interpreter, has the losses of the portable forms."""

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, logged_rank, train
from test_golden_layouts import in_float64

from primus.engine.config import ConfigContainer
from primus.engine.kernels import pick

pytestmark = pytest.mark.slow  # whole runs

KERNELS: dict[str, Any] = {
    "enable_primus_turbo": True,
    "use_turbo_attention": True,
    "use_turbo_rms_norm": True,
    "use_turbo_fused_act_with_probs": True,
    "use_turbo_grouped_gemm": True,
}
MODEL: dict[str, Any] = {
    "num_experts": 4,
    "moe_grouped_gemm": True,
    "moe_ffn_hidden_size": 16,
    "moe_router_topk": 2,
    "init_method_std": 0.2,
    "num_layers": 1,
    "seq_length": 8,
    "global_batch_size": 1,
    "train_iters": 1,
}


class Noted:
    """A kernel that leaves a file behind where it is launched, in whatever process."""

    def __init__(self, kernel: Any, note: Path) -> None:
        self.kernel, self.note = kernel, note

    def __getitem__(self, grid: Any) -> Any:
        self.note.touch()
        return self.kernel[grid]


def test_kernels_change_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from primus.engine.kernels.triton_forms import activation, attention, grouped, norm

    (portable,) = train(tmp_path, "portable", MODEL, change=in_float64)
    monkeypatch.setattr(pick, "_obstacle", lambda *_: None)
    kernels = {norm: ["_forward", "_backward"], activation: ["_forward", "_backward"], grouped: ["_product"]}
    kernels[attention] = ["_forward", "_query_gradient", "_key_gradients"]
    notes = []
    for module, names in kernels.items():
        for name in names:
            notes.append(tmp_path / f"{module.__name__}.{name}")
            monkeypatch.setattr(module, name, Noted(getattr(module, name), notes[-1]))
    (row,) = train(tmp_path, "kernels", {**MODEL, **KERNELS}, change=in_float64)
    assert [note.name for note in notes if not note.exists()] == []
    assert (row["lm_loss"], row["grad_norm"]) == pytest.approx((portable["lm_loss"], portable["grad_norm"]), rel=1e-12)


def test_on_a_cpu_one_line_says_what_runs_instead(tmp_path: Path) -> None:
    container: ConfigContainer = build_container(tmp_path, "run", 1, {**MODEL, **KERNELS})
    (said,) = run_ranks(logged_rank, 1, container)
    (line,) = [line for line in said.splitlines() if "portable forms run" in line]
    assert "attention, RMSNorm, activation and routing weight of experts, products of experts" in line
