"""A folder of safetensors, one file or several with an index: names and shapes at once, values when they are asked for."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from primus.engine.checkpoint.hf.stored import files_of
from primus.errors import InputError

__all__ = ["DTYPES", "HFFolder"]

DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Names in the files of the dtypes that weights have."""


class HFFolder:
    """Tensors of a folder. Files are mapped, so a part of a tensor costs no more than that part."""

    def __init__(self, folder: Path) -> None:
        """InputError names every file that is missing or cut short, and every tensor that is not where the index says."""
        self._opened: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """By name."""
        self.dtypes: dict[str, str] = {}
        """As the files name them, by name."""
        files, indexed = files_of(folder)
        problems: list[str] = []
        for file in files:
            try:
                self._open(folder, file)
            except (OSError, SafetensorError) as error:
                problems.append(f"{folder / file} is damaged or no safetensors file: {error}")
        if not problems:
            astray = [(name, file) for name, file in indexed.items() if self._file_of.get(name) != file]
            problems = [f"{folder}: the index says that {file} holds {name}, and it does not" for name, file in astray]
        if problems:
            raise InputError(problems)

    def read(self, name: str, part: tuple[slice, ...]) -> Tensor:
        """Read a part of a tensor."""
        value: Tensor = self._opened[self._file_of[name]].get_slice(name)[part]
        return value

    def _open(self, folder: Path, file: str) -> None:
        opened: Any = safe_open(folder / file, framework="pt")
        self._opened[file] = opened
        for name in opened.keys():  # noqa: SIM118 - it is no dict
            header = opened.get_slice(name)
            self.shapes[name], self.dtypes[name] = tuple(header.get_shape()), header.get_dtype()
            self._file_of[name] = file
