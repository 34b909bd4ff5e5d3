"""`model_folder` finds a Hugging Face model on disk: a folder as it is, or what the hub's local cache has of a name.

The cache is asked first and the network only for what it lacks, so that a machine without one runs what it once downloaded.
"""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

from primus.errors import InputError

__all__ = ["cached_folder", "is_reachable", "model_folder"]

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_PATIENCE = 5.0
"""Seconds."""
_TEXTS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"


def model_folder(name: str, *, key: str = "hf_path", weights: bool = True) -> Path:
    """Return the absolute folder of a model, downloaded if need be; without `weights` its configuration and tokenizer do.

    InputError, which calls the name by its `key`, if it is neither a folder nor in the cache nor to be had.
    """
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder.absolute()
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{key} {name or '(empty)'}: there is no such folder, and it is no name on the hub, OWNER/MODEL; correct the path"
        )
    return cached_folder(name, weights=weights) or _downloaded(name, key, weights=weights)


def cached_folder(name: str, *, weights: bool = True) -> Path | None:
    """Return the newest snapshot in the cache, without a network; None if files are missing, as after a broken download."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, local_files_only=True, allow_patterns=_patterns(weights=weights)))
    except (OSError, ValueError):
        return None
    return folder if _is_whole(folder, weights=weights) else None


def is_reachable() -> bool:
    """Ask the hub once: its library would ask for each file many times over before it gives up, a minute in all."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=_PATIENCE)
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _downloaded(name: str, key: str, *, weights: bool) -> Path:
    from huggingface_hub import constants, snapshot_download

    if not is_reachable():
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} cannot be reached"
        raise InputError(
            f"{key} {name}: there is no such folder, the cache {constants.HF_HUB_CACHE} does not hold all of it, and {why}; "
            f"give a folder, or run `hf download {name}` where there is a network and bring the cache here (HF_HOME says where)"
        )
    try:
        return Path(snapshot_download(name, allow_patterns=_patterns(weights=weights)))
    except (OSError, ValueError) as error:
        # A name that is not there, one that asks for a licence, a network that breaks off: the library says which.
        raise InputError(f"{key} {name} could not be downloaded: {_first_line(error)}") from error


def _patterns(*, weights: bool) -> list[str]:
    return [*_TEXTS, "*.safetensors"] if weights else list(_TEXTS)


def _is_whole(folder: Path, *, weights: bool) -> bool:
    if not weights:
        return (folder / "config.json").is_file()
    files = [_ONE]
    if (folder / _INDEX).is_file():
        try:
            files = sorted(set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
    return all((folder / file).is_file() for file in ("config.json", *files))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
