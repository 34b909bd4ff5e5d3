"""A model is found as a folder, in the hub's local cache, or by a download, in this order."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from primus.errors import InputError
from primus.hub import model_folder

COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, on a machine without a network."""

    def refuse(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, name: str, *files: str) -> Path:
    """Put a snapshot into the cache as the hub's library would, and return its folder."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for file in files:
        (snapshot / file).write_text("{}")
    return snapshot


def test_a_folder_is_itself_also_if_the_cache_has_its_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "owner/model", "config.json", "model.safetensors")
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_folder("owner/model") == tmp_path / "owner" / "model"


def test_a_whole_snapshot_in_the_cache_needs_no_network(cache: Path) -> None:
    snapshot = put(cache, "owner/model", "config.json", "model.safetensors")
    assert model_folder("owner/model") == snapshot


def test_a_snapshot_without_all_files_of_its_index_is_not_whole(cache: Path) -> None:
    """What an interrupted download leaves serves for the configuration alone."""
    snapshot = put(cache, "owner/model", "config.json", "one.safetensors", "model.safetensors.index.json")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_folder("owner/model", weights=False) == snapshot
    with pytest.raises(InputError, match=r"hf_path owner/model: .* cache .*hub does not hold all of it, and http.* cannot be"):
        model_folder("owner/model")
    (snapshot / "two.safetensors").write_text("")
    assert model_folder("owner/model") == snapshot


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/else", "a/b/c", ""])
def test_a_wrong_path_is_told_without_asking_the_hub(name: str) -> None:
    with pytest.raises(InputError, match=r"tokenizer_model .*: there is no such folder, and it is no name on the hub"):
        model_folder(name, key="tokenizer_model")


def test_what_the_cache_lacks_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights only where they are wanted."""
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            raise FileNotFoundError
        asked.append(allow_patterns)
        return str(put(cache, name, "config.json"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: None)
    model_folder("owner/model", weights=False)
    model_folder("owner/model")
    assert ["*.safetensors" in patterns for patterns in asked] == [False, True]


def test_a_download_that_fails_says_why(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *, local_files_only: bool = False, **_: Any) -> str:
        raise FileNotFoundError if local_files_only else OSError("Access to model is restricted.\nVisit the page.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: None)
    with pytest.raises(InputError, match=r"^hf_path owner/model could not be downloaded: Access to model is restricted\.$"):
        model_folder("owner/model")
