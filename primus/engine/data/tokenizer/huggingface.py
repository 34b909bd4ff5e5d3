"""Tokenizers of the Hugging Face hub: a local folder through the `tokenizers` library alone, anything else through
transformers.

A folder with `tokenizer.json` needs neither torch nor transformers, so that preparing data and checking an experiment
start at once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from primus.engine.data.tokenizer.fast import FastTokenizer
from primus.errors import InputError
from primus.hub import is_reachable

__all__ = ["open_huggingface"]


def open_huggingface(name: str, *, trust_remote_code: bool) -> "FastTokenizer | TransformersTokenizer":
    """Open a folder or a hub id; InputError if there is none or it has no end-of-document token."""
    folder = Path(name)
    if (folder / "tokenizer.json").is_file() and not trust_remote_code:
        return _open_folder(folder)
    return TransformersTokenizer(name, trust_remote_code=trust_remote_code)


def _not_opened(name: str, error: Exception) -> str:
    if Path(name).is_dir():
        return (
            f"tokenizer_model {name} is a folder without a tokenizer that can be opened: it needs a tokenizer.json, as `primus "
            "data train-tokenizer` writes it, or the files of a Hugging Face tokenizer with their tokenizer_config.json"
        )
    first = str(error).strip().splitlines()[0]
    return f"tokenizer_model {name} is neither a folder with a tokenizer nor a hub id that can be reached: {first}"


def _open_folder(folder: Path) -> FastTokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:
        raise InputError(f"tokenizer_model {folder}: tokenizer.json cannot be read: {error}") from error
    return FastTokenizer(tokenizer, _end_token(folder, tokenizer))


class TransformersTokenizer:
    """Whatever `AutoTokenizer` opens."""

    def __init__(self, name: str, *, trust_remote_code: bool) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(
                name, trust_remote_code=trust_remote_code, local_files_only=not Path(name).exists() and not is_reachable()
            )
        except (OSError, ValueError) as error:
            raise InputError(_not_opened(name, error)) from error
        if self._tokenizer.eos_token_id is None:
            raise InputError(f"tokenizer_model {name} names no eos token, which ends documents; set eos_token in its config")

    @property
    def vocab_size(self) -> int:
        return len(self._tokenizer)

    @property
    def eod(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def tokenize(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))


def _end_token(folder: Path, tokenizer: Any) -> int:
    file = folder / "tokenizer_config.json"
    try:
        settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        token = settings.get("eos_token")
        text = token["content"] if isinstance(token, dict) else token
        found = None if text is None else tokenizer.token_to_id(text)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"tokenizer_model {folder}: tokenizer_config.json cannot be read: {error!r}") from error
    if found is None:
        raise InputError(f"tokenizer_model {folder}: tokenizer_config.json names no eos_token of the vocabulary ({text!r})")
    return int(found)
