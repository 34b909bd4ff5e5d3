"""Whether a checkpoint holds the adapters that a run asks for, on the base that it has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["adapter_problems", "fingerprints_in"]

_FIELDS = ("scheme", "dim", "alpha", "share_expert_adapters", "normalize_moe_lora")
"""What the meaning of an adapter's values hangs on."""


def adapter_problems(
    folder: Path, saved: Mapping[str, Any], container: Mapping[str, Any], base: Mapping[str, Any] | None
) -> list[str]:
    """Return why what a checkpoint has in common does not fit a run; `base` None: all weights are asked for."""
    its_base = saved.get("base")
    if base is None:
        return [] if its_base is None else [_only_adapters(folder, saved, its_base, has_peft=container["peft"] is not None)]
    if its_base is None:
        return [
            f"{folder} holds all weights of a model and no adapters, which a run with peft resumes: give it as "
            "pretrained_checkpoint, or leave peft out"
        ]
    theirs, asked = saved["container"]["peft"], container["peft"]
    problems = [
        f"peft.{name}: the adapters in {folder} were trained with {theirs.get(name)}, the run says {asked[name]}"
        for name in _FIELDS
        if theirs.get(name) != asked[name]
    ]
    # In another dtype the same weights have other bits.
    for dtype, ours in fingerprints_in(base).items():
        known = fingerprints_in(its_base).get(dtype, ours)
        if known != ours:
            problems.append(
                f"the adapters in {folder} belong to other base weights than this run has: they were trained on "
                f"{_name(its_base)} (fingerprint {known}), and {_name(base)} has {ours}; give that base"
            )
    return problems


def fingerprints_in(base: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the fingerprints of a base by dtype; earlier checkpoints name that of one dtype, or none."""
    if "fingerprints" in base:
        by_dtype: Mapping[str, str] = base["fingerprints"]
        return by_dtype
    return {} if base["fingerprint"] is None else {base["dtype"]: base["fingerprint"]}


def _only_adapters(folder: Path, saved: Mapping[str, Any], base: Mapping[str, Any], *, has_peft: bool) -> str:
    what = f"{folder} holds only adapters (peft {saved['container']['peft']['scheme']}, trained on {_name(base)})"
    if has_peft:
        return f"{what}, and no weights to adapt: give it as load, and those as pretrained_checkpoint or hf_path"
    return f"{what}: set peft and give it as load to go on with them, or make a whole model with `primus checkpoint export-hf`"


def _name(base: Mapping[str, Any]) -> str:
    return str(base["path"] or "random weights")
