"""`export_peft` and `import_peft`: adapters between a checkpoint of ours and a folder of the `peft` library.

One adapter of a fused linear is theirs on each of its projections: A is the same for all, and the rows of B are dealt as those
of the weight are. Adapters that theirs cannot say, or ours, are refused by name. Values are copied bit by bit.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint import dist_format
from primus.engine.checkpoint.dist_format import Piece, Stored
from primus.engine.checkpoint.dist_plan import Box
from primus.engine.checkpoint.folder import RELEASE, TRACKER, write_durably
from primus.engine.checkpoint.hf.describe import described
from primus.engine.checkpoint.hf.forms import runs, their_rows
from primus.engine.checkpoint.hf.names import Row, listed, row_of
from primus.engine.checkpoint.hf.original import as_original, checkpoint_folder, copy_others, known_original
from primus.engine.checkpoint.hf.peft_folder import ADAPTER_CONFIG, PREFIX, STEM, Factors, read_adapter_config, read_factors
from primus.engine.checkpoint.hf.read import CONFIG, model_in
from primus.engine.checkpoint.hf.shapes import global_shapes
from primus.engine.checkpoint.hf.target import Planned, write_safetensors
from primus.engine.checkpoint.load import Source, open_checkpoint
from primus.engine.checkpoint.merged import adapted_linears, whole
from primus.engine.checkpoint.save import saved_layout, seal
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.linears import PARTS, SPELLED, linear_names
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.serialize import from_dict, to_dict
from primus.engine.parallel.mesh import single_mesh
from primus.errors import InputError

__all__ = ["export_peft", "import_peft"]


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
    linears = adapted_linears(source.shapes())
    rows = {linear: row_of(family, f"{linear}.weight", model) for linear in linears}
    stacked = [linear for linear, row in rows.items() if row is None or row.is_of_experts]
    if stacked:
        raise InputError(
            f"the format of the peft library has no adapters of {listed(stacked)}; `primus checkpoint export-hf` merges them"
        )
    tensors: dict[str, Tensor] = {}
    modules: list[str] = []
    for linear, parts in linears.items():
        row = rows[linear]
        assert row is not None
        for module, factors in _theirs(source, linear, parts, row, model):
            modules.append(module)
            tensors |= {f"{PREFIX}{module}.{factor}": value for factor, value in factors.items()}
    plan = {name: Planned(tuple(value.shape), value.dtype) for name, value in tensors.items()}
    write_safetensors(out, plan, tensors.items(), max_file_bytes=1 << 62, stem=STEM)
    content = _adapter_config(peft, _target_modules(modules, family, model), str(original or base["path"]))
    write_durably(out / ADAPTER_CONFIG, (json.dumps(content, indent=2) + "\n").encode())
    if original is not None:
        copy_others(original, out, but=(CONFIG,))


def import_peft(source: Path, base: Path, out: Path) -> None:
    """Write a checkpoint of the adapters in a folder, for a run on `base`, into the empty folder `out`.

    `peft.json` beside it says how the run has to ask for them. InputError names all that adapters of ours cannot be.
    """
    family, model = model_in(base)
    config = read_adapter_config(source)
    theirs = read_factors(source, config)
    found: dict[str, dict[str, Factors]] = {}
    shapes, unlike = global_shapes(model), list[str]()
    for linear in linear_names(model):
        row = row_of(family, f"{linear}.weight", model)
        if row is None or row.is_of_experts:
            continue
        names = PARTS.get(linear.rpartition(".")[2], ("",))
        parts = {part: name.removesuffix(".weight") for part, name in zip(names, row.theirs, strict=True)}
        held = {part: theirs.pop(module) for part, module in parts.items() if module in theirs}
        if held:
            found[linear] = held
        outputs, inputs = shapes[f"{linear}.weight"]
        rows_of = dict(zip(names, their_rows(row.form, outputs, model), strict=True))
        unlike += [parts[part] for part, factors in held.items() if _extent(factors) != {(rows_of[part], inputs)}]
    if unlike:
        raise InputError(f"{source}: adapters are of another size than the model in {base}: {listed(unlike)}")
    if theirs or not found:
        raise InputError(f"{source}: the {family} in {base} has no linears that can be adapted here called {listed(theirs)}")
    peft, tensors = _ours(found, config, source, model)
    _write(out, tensors, peft, model, base)


def _extent(factors: Factors) -> set[tuple[int, int]]:
    """Return rows and columns of the weight that factors adapt, as each of them says."""
    inputs = factors["lora_A"].shape[-1]
    return {(len(rows), inputs) for name, rows in factors.items() if name != "lora_A"}


def _theirs(source: Source, linear: str, parts: set[str], row: Row, model: ModelConfig) -> Iterator[tuple[str, Factors]]:
    """Yield their modules with the factors of each."""
    prefix, names = f"{linear}.adapter.", PARTS.get(linear.rpartition(".")[2], ("",))
    modules = [name.removesuffix(".weight") for name in row.theirs]
    if parts != {""}:
        for part, module in zip(names, modules, strict=True):
            if part in parts:
                stem = f"{prefix}adapter_{part}.linear_"
                a, b = (whole(source, f"{stem}{side}.weight") for side in ("in", "out"))
                yield module, {"lora_A.weight": a, "lora_B.weight": b}
        return
    a, b = (whole(source, f"{prefix}linear_{side}.weight") for side in ("in", "out"))
    has_magnitude = f"{prefix}weight_magnitude" in source.shapes()
    dealt = [b] if not has_magnitude else [b, whole(source, f"{prefix}weight_magnitude")]
    for number, module in enumerate(modules):
        values = [_dealt(value, number, row, model) for value in dealt]
        yield module, {"lora_A.weight": a, **dict(zip(("lora_B.weight", "lora_magnitude_vector"), values, strict=False))}


def _dealt(value: Tensor, part: int, row: Row, model: ModelConfig) -> Tensor:
    """Return the rows of one of their tensors."""
    own = [run for run in runs(row.form, len(value), model) if run.part == part]
    result = value.new_empty(sum(run.length for run in own), *value.shape[1:])
    for run in own:
        result[run.their_slice(run.ours, run.ours + run.length)] = value[run.ours : run.ours + run.length]
    return result


def _fused(parts: list[Tensor], linear: str, model: ModelConfig) -> Tensor:
    """Return the rows of theirs in our order."""
    if len(parts) == 1:
        return parts[0]
    rows = sum(map(len, parts))
    result = parts[0].new_empty(rows, *parts[0].shape[1:])
    for run in runs("qkv" if linear.endswith("linear_qkv") else "halves", rows, model):
        result[run.ours : run.ours + run.length] = parts[run.part][run.their_slice(run.ours, run.ours + run.length)]
    return result


def _ours(
    found: Mapping[str, dict[str, Factors]], config: Mapping[str, Any], source: Path, model: ModelConfig
) -> tuple[PEFTConfig, dict[str, Tensor]]:
    is_fused = all(_is_one(linear, held) for linear, held in found.items())
    is_dora = bool(config.get("use_dora"))
    if is_dora and not is_fused:
        raise InputError(
            f"{source}: with use_dora, q, k and v, or gate and up, share one here: all must have an adapter, with one lora_A"
        )
    tensors: dict[str, Tensor] = {}
    targets: dict[str, set[str]] = {}
    for linear, held in found.items():
        prefix, (stem, _, last) = f"{linear}.adapter.", linear.rpartition(".")
        if is_fused:
            values = list(held.values())
            tensors[f"{prefix}linear_in.weight"] = values[0]["lora_A"]
            tensors[f"{prefix}linear_out.weight"] = _fused([each["lora_B"] for each in values], linear, model)
            if is_dora:
                lengths = [each["lora_magnitude_vector"] for each in values]
                tensors[f"{prefix}weight_magnitude"] = _fused(lengths, linear, model).float()
            targets.setdefault(last, set()).add(linear)
            continue
        for part, factors in held.items():
            name = f"{prefix}adapter_{part}." if part else prefix
            tensors[f"{name}linear_in.weight"], tensors[f"{name}linear_out.weight"] = factors["lora_A"], factors["lora_B"]
            spelled = SPELLED.get(part, last)
            targets.setdefault(spelled, set()).add(f"{stem}.{spelled}")
    layers = {last: [n for n in linear_names(model) if _spells(n, last)] for last in targets}
    named = [[last] if len(names) == len(layers[last]) else sorted(names) for last, names in targets.items()]
    rank = config["r"]
    alpha = float(config["lora_alpha"]) * (rank**0.5 if config.get("use_rslora") else 1.0)
    scheme: Any = "dora" if is_dora else "lora" if is_fused else "canonical_lora"
    dropout = float(config.get("lora_dropout") or 0.0)
    modules = tuple(name for names in named for name in names)
    return PEFTConfig(scheme=scheme, target_modules=modules, dim=rank, alpha=alpha, dropout=dropout), tensors


def _is_one(linear: str, held: Mapping[str, Factors]) -> bool:
    """Tell whether one adapter of a whole linear is what their projections have."""
    names, values = PARTS.get(linear.rpartition(".")[2], ("",)), list(held.values())
    return len(held) == len(names) and all(torch.equal(each["lora_A"], values[0]["lora_A"]) for each in values)


def _spells(linear: str, spelled: str) -> bool:
    last = linear.rpartition(".")[2]
    return last == spelled or spelled in (SPELLED[part] for part in PARTS.get(last, ()))


def _adapter_config(peft: PEFTConfig, modules: list[str], base: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": peft.dim,
        "lora_alpha": int(peft.alpha) if float(peft.alpha).is_integer() else peft.alpha,
        "lora_dropout": peft.dropout,
        "target_modules": modules,
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


def _target_modules(modules: list[str], family: str, model: ModelConfig) -> list[str]:
    """Return last names of modules that are adapted in all layers, and whole names of others."""
    rows = [row_of(family, f"{linear}.weight", model) for linear in linear_names(model)]
    theirs = [name.removesuffix(".weight") for row in rows if row is not None for name in row.theirs]
    found: dict[str, set[str]] = {}
    for module in modules:
        found.setdefault(module.rpartition(".")[2], set()).add(module)
    named = [
        {last} if set(names) == {each for each in theirs if each.endswith(f".{last}")} else names
        for last, names in found.items()
    ]
    return sorted(set().union(*named))


def _write(out: Path, tensors: Mapping[str, Tensor], peft: PEFTConfig, model: ModelConfig, base: Path) -> None:
    folder = out / RELEASE
    folder.mkdir()
    stored = {name: Stored(tuple(value.shape), value.dtype) for name, value in tensors.items()}
    pieces = (Piece(name, Box((0,) * value.dim(), tuple(value.shape)), value) for name, value in tensors.items())
    common = {
        "iteration": 0,
        "state": TrainState().to_dict(),
        "container": {"model": to_dict(model), "peft": to_dict(peft), "checkpoint": {"hf_path": str(base.absolute())}},
        "saved_layout": saved_layout(single_mesh()),
        "optimizer_common": None,
        "has_rng": False,
        "base": {"path": str(base.absolute()), "fingerprint": None, "dtype": None},
    }
    seal(folder, dist_format.save_pieces(folder, stored, pieces), common)
    write_durably(out / "peft.json", (json.dumps(to_dict(peft), indent=2) + "\n").encode())
    write_durably(out / TRACKER, RELEASE.encode())
