"""From a name or a path to the rows of training, validation and test: `open_splits` is the name to use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from primus.engine.config import SFTConfig
from primus.engine.data.sft.rows import JsonLines, Listed, Part, Rows, file_state, parsed
from primus.errors import InputError
from primus.hub import is_reachable

__all__ = ["KNOWN", "Splits", "open_splits"]

KNOWN = {
    "squad": ("rajpurkar/squad", None),
    "gsm8k": ("openai/gsm8k", "main"),
    "openmathinstruct2": ("nvidia/OpenMathInstruct-2", None),
    "tulu3": ("allenai/tulu-3-sft-mixture", None),
    "alpaca": ("tatsu-lab/alpaca", None),
}
"""Short names of data sets on the hub, with the configuration that is meant."""

_FILES = {
    "train": ("training.jsonl", "train.jsonl"),
    "validation": ("validation.jsonl", "valid.jsonl", "dev.jsonl"),
    "test": ("test.jsonl",),
}
_OF_HUB = {"train": ("train", "train_1M"), "validation": ("validation",), "test": ("test",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """Rows by use."""

    train: Rows
    validation: Rows | None
    test: Rows | None


def open_splits(config: SFTConfig) -> Splits:
    """Open the data; InputError if there is none of that name, or a file cannot be read."""
    found = _open(config.train, config.subset)
    if "train" not in found:
        raise InputError(f"{config.train} has no training rows; it has {', '.join(found) or 'nothing'}")
    train, validation = found["train"], _own_validation(config, found)
    if config.do_validation and validation is None and config.val_proportion:
        train, validation = _set_apart(train, config)
    if config.max_train_samples is not None:
        train = Part(train, range(min(config.max_train_samples, len(train))))
    test = found.get("test") if config.do_test else None
    return Splits(train=train, validation=validation if config.do_validation else None, test=test)


def _own_validation(config: SFTConfig, found: dict[str, Rows]) -> Rows | None:
    """Return the data's own validation rows: a folder's files are meant for it, a hub's are used if that is asked for."""
    is_folder = (Path(config.train) / _FILES["train"][0]).is_file() or (Path(config.train) / _FILES["train"][1]).is_file()
    return found.get("validation") if is_folder or config.prefer_own_validation else None


def _set_apart(train: Rows, config: SFTConfig) -> tuple[Rows, Rows]:
    """Part rows at random, the seed's; both keep the order of the file."""
    count = max(1, round(len(train) * (config.val_proportion or 0.0)))
    if count >= len(train):
        raise InputError(
            f"{config.train} has {len(train)} rows to train on, too few to set {count} apart to validate on: give more, or "
            "validation.jsonl beside them, or say dataset.do_validation: false"
        )
    drawn = np.random.default_rng(config.seed).permutation(len(train))
    return Part(train, np.sort(drawn[count:])), Part(train, np.sort(drawn[:count]))  # type: ignore[arg-type]


def _open(name: str, subset: str | None) -> dict[str, Rows]:
    path = Path(name)
    if path.is_file():
        return {"train": _file(path)}
    if path.is_dir():
        return _folder(path)
    return _from_hub(name, subset)


def _file(path: Path) -> Rows:
    if path.suffix == ".jsonl":
        return JsonLines(path)
    if path.suffix == ".json":
        try:
            read = parsed(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        if not isinstance(read, list) or not read:
            raise InputError(f"{path} is no list of rows; write one, or a row a line in a file that ends in .jsonl")
        return Listed(read, str(path), file_state(path))
    if path.suffix == ".parquet":
        return Listed(_table(path), str(path), file_state(path), is_table=True)
    raise InputError(f"{path} is no file of rows: those end in .jsonl, .json or .parquet")


def _table(path: Path) -> Any:
    """Return the rows of a parquet file; InputError if it cannot be read or has none."""
    import pyarrow as pa
    from datasets import Dataset
    from pyarrow import parquet

    try:
        if parquet.read_metadata(path).num_rows == 0:
            raise InputError(f"{path} has no rows")
        return Dataset.from_parquet(str(path))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _folder(path: Path) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for split, names in _FILES.items():
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is not None:
            found[split] = JsonLines(file)
    if found:
        return found
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        from datasets import load_from_disk

        held = load_from_disk(str(path))
        return _splits_of(held, str(path)) if isinstance(held, dict) else {"train": Listed(held, str(path), is_table=True)}
    raise InputError(f"{path} holds no rows: put training.jsonl there, or a data set that the datasets library saved")


def _from_hub(name: str, subset: str | None) -> dict[str, Rows]:
    from datasets import load_dataset

    known, configuration = KNOWN.get(name, (name, None))
    try:
        with _quick_answers():
            held = load_dataset(known, subset or configuration)
    except Exception as error:  # the library has an error of its own for each way of not finding a data set
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        short = "" if known == name else f" ({known} on the hub)"
        raise InputError(
            f"dataset {name}{short} is neither a file, nor a folder, nor to be had from the hub or its cache: {first}. Short "
            f"names are {', '.join(KNOWN)}"
        ) from error
    return _splits_of(held, known)


@contextmanager
def _quick_answers() -> Iterator[None]:
    """Let the library look into its cache alone where there is no network, which it would ask for half a minute."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not is_reachable()
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def _splits_of(held: Any, what: str) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for split, names in _OF_HUB.items():
        name = next((name for name in names if name in held), None)
        if name is not None:
            found[split] = Listed(held[name], f"{what} {name}", is_table=True)
    return found
