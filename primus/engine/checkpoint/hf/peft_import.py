"""`import_peft`: adapters in a folder of the `peft` library as a checkpoint of ours.

What shares one linear here becomes one adapter where their factors allow it, and `canonical_lora` where they do not. Adapters
that ours cannot be are refused by name. Values are copied bit by bit.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint import dist_format
from primus.engine.checkpoint.dist_format import Piece, Stored
from primus.engine.checkpoint.dist_plan import Box
from primus.engine.checkpoint.folder import RELEASE, TRACKER, write_durably
from primus.engine.checkpoint.hf.forms import their_rows
from primus.engine.checkpoint.hf.names import Row, listed, row_of
from primus.engine.checkpoint.hf.peft_folder import STEM, Factors, read_adapter_config, read_factors
from primus.engine.checkpoint.hf.peft_modules import form_of, fused, held_in, part_names, rank_of, stacks
from primus.engine.checkpoint.hf.read import ADAPTER_CONFIG, model_in
from primus.engine.checkpoint.hf.shapes import global_shapes
from primus.engine.checkpoint.hf.stored import files_of
from primus.engine.checkpoint.hf.weights import HFSource
from primus.engine.checkpoint.merged import fingerprints
from primus.engine.checkpoint.save import saved_layout, seal
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.linears import PARTS, SPELLED, linear_names
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.serialize import to_dict
from primus.engine.parallel.mesh import single_mesh
from primus.errors import InputError

__all__ = ["import_peft"]

log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of the weights of runs."""


def import_peft(source: Path, base: Path, out: Path) -> None:
    """Write a checkpoint of the adapters in a folder, for a run on `base`, into the empty folder `out`.

    `peft.json` beside it says how the run has to ask for them. InputError names all that adapters of ours cannot be.
    """
    family, model = model_in(base)
    config = read_adapter_config(source)
    found = _found(source, config, base, family, model)
    peft, tensors = _ours(found, config, source, model)
    _write(out, tensors, peft, model, base)


@dataclass(frozen=True, slots=True)
class _Held:
    """Their factors for one of our linears."""

    row: Row
    parts: dict[str, Factors]
    rank: int

    @property
    def is_whole(self) -> bool:
        """One adapter of all of it is the same."""
        values = list(self.parts.values())
        has_all = self.row.is_of_experts or len(values) == len(self.row.theirs)
        return has_all and all(torch.equal(each["lora_A"], values[0]["lora_A"]) for each in values)


def _found(source: Path, config: Mapping[str, Any], base: Path, family: str, model: ModelConfig) -> dict[str, _Held]:
    """Return what is there for our linears; InputError unless all of it fits one."""
    theirs, found = read_factors(source, config), dict[str, _Held]()
    shapes, unlike, other = global_shapes(model), list[str](), list[str]()
    for linear in linear_names(model):
        row = row_of(family, f"{linear}.weight", model)
        if row is None:
            continue
        *experts, outputs, inputs = shapes[f"{linear}.weight"]
        names, parts = part_names(linear, row), dict[str, Factors]()
        rows = their_rows(form_of(row), outputs, model)
        rank = int(config["r"])
        for name, count, target in zip(names, rows, held_in(config, linear, row, model), strict=False):
            if target.module in theirs:
                parts[name] = factors = theirs.pop(target.module)
                rank = rank_of(target.name, config)
                length = math.prod(experts) * rank
                other += [target.module] if _ranks(factors) != {length} else []
                unlike += [target.module] if _extent(factors) != {(count, inputs)} else []
        if parts:
            found[linear] = _Held(row, parts, rank)
    if other:
        pattern = " and its rank_pattern" if config.get("rank_pattern") else ""
        raise InputError(
            f"{source / STEM}.safetensors: adapters have another rank than r, {config['r']}, of {ADAPTER_CONFIG}{pattern}: "
            f"{listed(other)}"
        )
    if unlike:
        raise InputError(f"{source}: adapters are of another size than the model in {base}: {listed(unlike)}")
    single = [module for module in theirs if re.search(r"\.experts\.\d+\.", module)]
    if single:
        raise InputError(
            f"{source}: here gate and up of an expert share one lora_A, as in the stacks of transformers 5 "
            f"(target_parameters), and these have each their own: {listed(single)}"
        )
    if theirs or not found:
        raise InputError(f"{source}: the {family} in {base} has no linears that can be adapted here called {listed(theirs)}")
    return found


def _ranks(factors: Factors) -> set[int]:
    return {len(factors["lora_A"]), factors["lora_B"].shape[-1]}


def _extent(factors: Factors) -> set[tuple[int, int]]:
    """Return rows and columns of the weight that factors adapt, as each of them says."""
    inputs = factors["lora_A"].shape[-1]
    return {(len(rows), inputs) for name, rows in factors.items() if name != "lora_A"}


def _ours(
    found: Mapping[str, _Held], config: Mapping[str, Any], source: Path, model: ModelConfig
) -> tuple[PEFTConfig, dict[str, Tensor]]:
    is_fused = all(held.is_whole for held in found.values())
    is_dora = bool(config.get("use_dora"))
    if is_dora and not is_fused:
        raise InputError(
            f"{source}: with use_dora, q, k and v, or gate and up, share one here: all must have an adapter, with one lora_A, "
            "as an export has; merge another into its model by the peft library, and start from that by hf_path"
        )
    experts = {linear: _of_experts(held, model) for linear, held in found.items() if held.row.is_of_experts}
    is_shared = all((pairs == pairs[:1]).all() for each in experts.values() for pairs in each)
    tensors: dict[str, Tensor] = {}
    targets: dict[str, set[str]] = {}
    for linear, held in found.items():
        prefix, (stem, _, last) = f"{linear}.adapter.", linear.rpartition(".")
        spelled = {last}
        if linear in experts:
            a, b = (each[0].clone() if is_shared else each for each in experts[linear])
            tensors |= {f"{prefix}linear_in.weight": a, f"{prefix}linear_out.weight": b}
            spelled = {last} if is_fused else {SPELLED[part] for part in PARTS.get(last, ())} or {last}
        elif is_fused:
            values, form = list(held.parts.values()), form_of(held.row)
            tensors[f"{prefix}linear_in.weight"] = values[0]["lora_A"]
            tensors[f"{prefix}linear_out.weight"] = fused([each["lora_B"] for each in values], form, model)
            if is_dora:
                lengths = [each["lora_magnitude_vector"] for each in values]
                tensors[f"{prefix}weight_magnitude"] = fused(lengths, form, model).float()
        else:
            for part, factors in held.parts.items():
                name = f"{prefix}adapter_{part}." if part else prefix
                tensors |= {f"{name}linear_in.weight": factors["lora_A"], f"{name}linear_out.weight": factors["lora_B"]}
            spelled = {SPELLED.get(part, last) for part in held.parts}
        for each in spelled:
            targets.setdefault(each, set()).add(f"{stem}.{each}")
    rank = int(config["r"])
    peft = PEFTConfig(
        scheme="dora" if is_dora else "lora" if is_fused else "canonical_lora",
        target_modules=_target_modules(targets, model),
        dim=rank,
        alpha=float(config["lora_alpha"]) * (rank**0.5 if config.get("use_rslora") else 1.0),
        dropout=float(config.get("lora_dropout") or 0.0),
        share_expert_adapters=is_shared,
        normalize_moe_lora=_is_normalized(found, config, source, model),
    )
    return peft, tensors


def _of_experts(held: _Held, model: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return A [E, r, in] and B [E, out, r] of all experts."""
    assert model.moe.num_experts is not None
    (factors,) = held.parts.values()
    return stacks(factors["lora_A"], fused([factors["lora_B"]], form_of(held.row), model), model.moe.num_experts)


def _is_normalized(found: Mapping[str, _Held], config: Mapping[str, Any], source: Path, model: ModelConfig) -> bool:
    """Tell whether experts have the rank r / topk; InputError for any other rank than that and r."""
    rank, topk = int(config["r"]), model.moe.router_topk
    own = {linear: held.rank for linear, held in found.items() if held.rank != rank}
    experts = {linear for linear, held in found.items() if held.row.is_of_experts}
    if not own:
        return False
    if own.keys() != experts or set(own.values()) != {rank / topk} or config.get("use_rslora"):
        raise InputError(
            f"{source}: rank_pattern gives {listed(own)} the rank {', '.join(map(str, sorted(set(own.values()))))}; here all "
            f"have r, {rank}, or all experts r / {topk}, for so many experts has a token, without use_rslora"
        )
    return True


def _target_modules(targets: Mapping[str, set[str]], model: ModelConfig) -> tuple[str, ...]:
    """Return last names of what is adapted in all layers, and whole names of the rest."""
    layers = {last: [name for name in linear_names(model) if _spells(name, last)] for last in targets}
    named = [[last] if len(names) == len(layers[last]) else sorted(names) for last, names in targets.items()]
    return tuple(name for names in named for name in names)


def _spells(linear: str, spelled: str) -> bool:
    last = linear.rpartition(".")[2]
    return last == spelled or spelled in (SPELLED[part] for part in PARTS.get(last, ()))


def _fingerprints(base: Path, model: ModelConfig) -> dict[str, str]:
    """Return what tells the weights that the adapters are for, in each dtype of a run; nothing where they are not there."""
    try:
        files_of(base)
    except InputError as error:
        log.warning("NOT recorded, which weights the adapters are for (a run on others will not be told): %s", error)
        return {}
    return fingerprints(HFSource(base), model, _DTYPES)


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
        "base": {"path": str(base.absolute()), "fingerprints": _fingerprints(base, model)},
    }
    seal(folder, dist_format.save_pieces(folder, stored, pieces), common)
    write_durably(out / "peft.json", (json.dumps(to_dict(peft), indent=2) + "\n").encode())
    write_durably(out / TRACKER, RELEASE.encode())
