"""A folder of the peft library: `adapter_config.json`, and the factors of each module that has an adapter.

What adapters of ours cannot be, and what is not whole, is refused by name.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from primus.engine.checkpoint.hf.names import listed
from primus.engine.checkpoint.hf.read import ADAPTER_CONFIG
from primus.errors import InputError

__all__ = ["PREFIX", "STEM", "Factors", "read_adapter_config", "read_factors"]

STEM = "adapter_model"
"""Of the file of factors."""
PREFIX = "base_model.model."
"""Of the names in it."""
_FACTOR = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "modules_to_save": ([],),
    "alpha_pattern": ({},),
    "use_qalora": (False,),
    "trainable_token_indices": ([],),
    "layer_replication": ([],),
    # Others begin by changing the weights that they adapt.
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}
"""Entries with the values that adapters of ours have; null and absent are these, too."""

Factors = dict[str, Tensor]
"""`lora_A` [r, in], `lora_B` [out, r], and with DoRA `lora_magnitude_vector` [out]."""


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return the content; InputError with all that adapters of ours cannot be."""
    file = folder / ADAPTER_CONFIG
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}; give a folder that the peft library wrote") from error
    except ValueError as error:
        raise InputError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} is no map of settings; give a folder that the peft library wrote")
    problems = [
        f"{file}: {name} is {content[name]}; only {usable[0]} can be read"
        for name, usable in _ONLY.items()
        if content.get(name) and content[name] not in usable
    ]
    for name, kinds in (("r", (int,)), ("lora_alpha", (int, float))):
        value = content.get(name)
        if isinstance(value, bool) or not isinstance(value, kinds) or value <= 0:
            problems.append(f"{file}: {name} is {'missing' if value is None else value}; it is a number above 0")
    if problems:
        raise InputError(problems)
    return content


def read_factors(folder: Path, config: Mapping[str, Any]) -> dict[str, Factors]:
    """Return the factors of each module; InputError unless each has all that the configuration says."""
    file = folder / f"{STEM}.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    found: dict[str, Factors] = {}
    strange = []
    for name, value in tensors.items():
        match = _FACTOR.fullmatch(name)
        if match is None:
            strange.append(name)
        else:
            found.setdefault(match[1], {})[match[2]] = value
    if strange:
        raise InputError(f"{file}: no factors of adapters: {listed(strange)}")
    wanted = {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if config.get("use_dora") else set())
    odd = [module for module, factors in found.items() if factors.keys() != wanted]
    if odd:
        raise InputError(f"{file}: each module needs {', '.join(sorted(wanted))}, and these have others: {listed(odd)}")
    return found
