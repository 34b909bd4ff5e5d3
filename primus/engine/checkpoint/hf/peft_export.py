"""`export_peft`: the adapters of a checkpoint of ours as a folder of the `peft` library.

One adapter of a fused linear is theirs on each of its projections: A is the same for all, and the rows of B are dealt as those
of the weight are. Adapters that theirs cannot say are refused by name. Values are copied bit by bit.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from primus.engine.checkpoint.folder import write_durably
from primus.engine.checkpoint.hf.describe import described
from primus.engine.checkpoint.hf.names import Row, row_of
from primus.engine.checkpoint.hf.original import as_original, checkpoint_folder, copy_others, known_original
from primus.engine.checkpoint.hf.peft_folder import PREFIX, STEM, Factors
from primus.engine.checkpoint.hf.peft_modules import Target, dealt, flat_stacks, form_of, part_names, targets_of
from primus.engine.checkpoint.hf.read import ADAPTER_CONFIG, CONFIG
from primus.engine.checkpoint.hf.target import Planned, write_safetensors
from primus.engine.checkpoint.load import Source, open_checkpoint
from primus.engine.checkpoint.merged import adapted_linears, whole
from primus.engine.config.linears import linear_names
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.serialize import from_dict
from primus.engine.parallel.mesh import single_mesh
from primus.errors import InputError

__all__ = ["export_peft"]


def export_peft(checkpoint: Path, out: Path, *, original: Path | None = None) -> None:
    """Write the adapters of a checkpoint into the empty folder `out`, with the tokenizer of their base.

    InputError if there are none, or some that the format cannot say.
    """
    folder = checkpoint_folder(checkpoint)
    source = open_checkpoint(folder, single_mesh(), None)
    container, base = source.common["container"], source.common.get("base")
    if base is None:
        raise InputError(f"{folder} holds a whole model and no adapters; `primus checkpoint export-hf` writes that")
    model: ModelConfig = from_dict(container["model"], ModelConfig, "model")
    peft: PEFTConfig = from_dict(container["peft"], PEFTConfig, "peft")
    original = original or known_original(checkpoint, container)
    family, _ = described(model, "float32") if original is None else as_original(original, model, "float32")
    tensors: dict[str, Tensor] = {}
    targets: list[Target] = []
    for target, factors in _all(source, family, model):
        targets.append(target)
        tensors |= {f"{PREFIX}{target.module}.{factor}": value for factor, value in factors.items()}
    rows = ((linear, row_of(family, f"{linear}.weight", model)) for linear in linear_names(model))
    possible = [target for linear, row in rows if row is not None for target in targets_of(linear, row, model)]
    content = _adapter_config(peft, targets, possible, str(original or base["path"]))
    if peft.normalize_moe_lora:
        stacks = _named([target for target in targets if target.is_stack], possible)
        content["rank_pattern"] = dict.fromkeys(stacks, peft.dim // model.moe.router_topk)
    parameters = content.get("target_parameters")
    if parameters and content["use_dora"]:
        raise InputError(
            f"of a model with experts the peft library adapts {', '.join(parameters)} as parameters, which have no DoRA there; "
            "`primus checkpoint export-hf` merges them"
        )
    plan = {name: Planned(tuple(value.shape), value.dtype) for name, value in tensors.items()}
    write_safetensors(out, plan, tensors.items(), max_file_bytes=1 << 62, stem=STEM)
    write_durably(out / ADAPTER_CONFIG, (json.dumps(content, indent=2) + "\n").encode())
    if original is not None:
        copy_others(original, out, but=(CONFIG,))


def _all(source: Source, family: str, model: ModelConfig) -> Iterator[tuple[Target, Factors]]:
    """Yield all that they adapt with the factors of each; InputError for what they lack."""
    linears = adapted_linears(source.shapes())
    for linear, parts in linears.items():
        row = row_of(family, f"{linear}.weight", model)
        if row is None:
            raise InputError(f"models of the family {family} have no {linear} in the format of the peft library")
        wraps_both = f"{linear.rpartition('.')[0]}.linear_fc2" in linears
        yield from _theirs(source, linear, parts, row, model, wraps_both=wraps_both)


def _theirs(
    source: Source, linear: str, parts: set[str], row: Row, model: ModelConfig, *, wraps_both: bool
) -> Iterator[tuple[Target, Factors]]:
    """Yield what they adapt of one linear."""
    prefix, targets = f"{linear}.adapter.", targets_of(linear, row, model, wraps_both=wraps_both)
    if parts != {""}:
        for part, target in zip(part_names(linear, row), targets, strict=True):
            if part in parts:
                stem = f"{prefix}adapter_{part}.linear_"
                a, b = (whole(source, f"{stem}{side}.weight") for side in ("in", "out"))
                yield target, {"lora_A.weight": a, "lora_B.weight": b}
        return
    a, b = (whole(source, f"{prefix}linear_{side}.weight") for side in ("in", "out"))
    if row.is_of_experts:
        assert model.moe.num_experts is not None
        a, b = flat_stacks(a, b, model.moe.num_experts)
    has_magnitude = f"{prefix}weight_magnitude" in source.shapes()
    values = [b] if not has_magnitude else [b, whole(source, f"{prefix}weight_magnitude")]
    for number, target in enumerate(targets):
        rows = [dealt(value, number, form_of(row), model) for value in values]
        yield target, {"lora_A.weight": a, **dict(zip(("lora_B.weight", "lora_magnitude_vector"), rows, strict=False))}


def _adapter_config(peft: PEFTConfig, targets: Sequence[Target], possible: Sequence[Target], base: str) -> dict[str, Any]:
    modules, parameters = (_named([each for each in targets if each.is_parameter == kind], possible) for kind in (False, True))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": peft.dim,
        "lora_alpha": int(peft.alpha) if float(peft.alpha).is_integer() else peft.alpha,
        # The library drops nothing of what parameters read, and refuses to be told so.
        "lora_dropout": 0.0 if parameters else peft.dropout,
        "target_modules": modules,
        # Versions of the library that lack the entry read what does without it.
        **({"target_parameters": parameters} if parameters else {}),
        "use_dora": peft.scheme == "dora",
        "use_rslora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }


def _named(targets: Sequence[Target], possible: Sequence[Target]) -> list[str]:
    """Return the ends of the names of what is adapted in all layers, and whole names of the rest."""
    found: dict[str, set[str]] = {}
    for target in targets:
        found.setdefault(target.end, set()).add(target.name)
    everywhere = {end: {each.name for each in possible if each.end == end} for end in found}
    return sorted(set().union(*({end} if names == everywhere[end] else names for end, names in found.items())))
