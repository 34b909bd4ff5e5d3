"""Where tokens come from: one blend divided by `split`, one blend for each split, or mock documents."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from primus.backends.megatron.blends import BlendError, is_number, parse_blend, read_split_lists, read_words
from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule, Unreadable
from primus.engine.config import Blend
from primus.engine.config.split import SPLITS, split_shares

__all__ = ["DERIVATIONS", "RULES", "blend", "builds_mask", "source_prefixes", "split", "split_blends"]

_T = TypeVar("_T")
_DEFAULT_SPLIT = "969, 30, 1"
_MOCK_VOCABULARY = 131072
_OWN_LISTS = tuple(f"{name}_data_path" for name in SPLITS)
_ONE_SOURCE = ("data_path", "data_args_path")
_OWN_SOURCES = (*_OWN_LISTS, "per_split_data_args_path")


def blend(p: Params) -> Blend | None:
    """Return the one source that `split` divides; None if there is none."""
    if p["data_path"]:
        return _readable("data_path", lambda: _blend(p, p["data_path"]))
    if p["data_args_path"]:
        return _readable("data_args_path", lambda: _blend(p, read_words(p.input_path(p["data_args_path"]))))
    return None


def split_blends(p: Params) -> dict[str, Blend | None]:
    """Return the source of each of train, valid and test where they have their own."""
    if p["per_split_data_args_path"]:
        lists = _readable("per_split_data_args_path", lambda: read_split_lists(p.input_path(p["per_split_data_args_path"])))
    else:
        lists = {name: p[f"{name}_data_path"] for name in SPLITS}
    return {name: _own_blend(p, name, words) for name, words in lists.items()}


def source_prefixes(p: Params) -> dict[str, str]:
    """Return the key that names each prefix of indexed files."""
    found: dict[str, str] = {}
    for key in (*_ONE_SOURCE, *_OWN_SOURCES):
        found |= dict.fromkeys(_readable(key, partial(_prefixes, p, key)), key)
    return found


def split(p: Params) -> str | None:
    """Return the shares of train, valid and test in the one source; None where there is no such source."""
    if p["mock_data"] or not _any(p, _ONE_SOURCE):
        return None
    return _DEFAULT_SPLIT if p["split"] is None else str(p["split"])


def builds_mask(p: Params) -> bool:
    """Tell whether batches carry a mask: only where it says more than causal attention does."""
    return bool(p["create_attention_mask_in_dataloader"] and p["reset_attention_mask"])


def mock_data_replaces_files(p: Params) -> Iterator[Rewrite]:
    """Synthetic documents need no files, and their text is integers."""
    if not p["mock_data"]:
        return
    reason = "mock_data is true"
    for key in (*_ONE_SOURCE, *_OWN_SOURCES):
        if p[key] is not None:
            yield Rewrite(key=key, value=None, reason=reason, notice=f"{p.where(key)} is laid aside: {p.where('mock_data')}.")
    if p["tokenizer_type"] != "NullTokenizer":
        notice = f"{p.where('tokenizer_type')} is laid aside: {p.where('mock_data')} uses the NullTokenizer."
        yield Rewrite(
            key="tokenizer_type", value="NullTokenizer", reason=reason, notice=notice if p.is_chosen("tokenizer_type") else None
        )
    if p["vocab_size"] is None:
        notice = f"vocab_size is {_MOCK_VOCABULARY}, the default of mock data: set vocab_size for another one."
        yield Rewrite(key="vocab_size", value=_MOCK_VOCABULARY, reason=reason, notice=notice)


def own_data_lay_preset_split_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's `split` gives way to data of their own for each split."""
    if p["split"] is not None and p.is_preset("split") and _any(p, _OWN_SOURCES) and not _any(p, _ONE_SOURCE):
        notice = f"{p.where('split')} is laid aside: train, valid and test have their own data."
        yield Rewrite(key="split", value=None, reason="each split has its own data", notice=notice)


def default_split(p: Params) -> Iterator[Rewrite]:
    """One source without a split gets the default one."""
    if p["split"] is None and _any(p, _ONE_SOURCE):
        key = next(key for key in _ONE_SOURCE if p[key])
        notice = f"split is {_DEFAULT_SPLIT}, the default for {key} ({p.source(key)}): set split for other shares."
        yield Rewrite(key="split", value=_DEFAULT_SPLIT, reason="the default", notice=notice)


def source_is_one(p: Params) -> Problems:
    """Data come from one place."""
    if p["mock_data"]:
        return
    own = [key for key in _OWN_LISTS if p[key]][:1]
    used = [key for key in (*_ONE_SOURCE, *own, "per_split_data_args_path") if p[key]]
    if len(used) > 1:
        yield f"{' and '.join(p.where(key) for key in used)} are different sources of data: keep one of them."
    elif used and p.has_rows:
        yield f"{p.where(used[0])} names documents, and the run has rows to fine-tune on: leave it out."
    elif not used and not p.has_rows:
        yield (
            "there is no data: set data_path, or train_data_path and valid_data_path, to prefixes of .bin/.idx files, "
            "or set mock_data: true for synthetic documents."
        )


def blends_are_readable(p: Params) -> Problems:
    """Lists follow the grammar and files can be read."""
    for key in (*_ONE_SOURCE, *_OWN_SOURCES):
        try:
            for words in _given_blends(p, key):
                parse_blend(words)
        except BlendError as fault:
            yield f"{p.where(key)}: {fault}."


def prefixes_are_prefixes(p: Params) -> Problems:
    """A dataset goes by the name that its two files share, and weights come in pairs with prefixes."""
    for prefix, key in source_prefixes(p).items():
        if os.access(f"{prefix}.idx", os.F_OK):
            continue
        if prefix.endswith((".bin", ".idx")):
            yield f"{p.where(key)}: leave out the {prefix[-4:]} of {prefix}: a dataset is named by what its two files share."
        elif is_number(Path(prefix).name):
            name = Path(prefix).name
            yield f"{p.where(key)}: {name} stands where a prefix is expected: give every prefix a weight before it, or none."


def split_is_readable(p: Params) -> Problems:
    """A split divides one source into shares."""
    if p["split"] is None:
        return
    if _any(p, _OWN_SOURCES) and not _any(p, _ONE_SOURCE):
        yield f"{p.where('split')} divides one source, but train, valid and test have their own data: set split: null."
        return
    try:
        split_shares(p["split"])
    except ValueError as fault:
        yield f"{p.where('split')}: {fault}."


def training_has_documents(p: Params) -> Problems:
    """Training draws from the training split."""
    if p["skip_train"] or p["mock_data"]:
        return
    text = split(p)
    if text is not None and _shares(text)[0] == 0:
        yield f"{p.where('split')} leaves no documents for training: give its first share a value."
    elif _any(p, _OWN_SOURCES) and split_blends(p)["train"] is None:
        yield f"train_data_path is null ({p.source('train_data_path')}), but training draws from it: set it."


def evaluation_has_documents(p: Params) -> Problems:
    """Validation draws from the validation split."""
    if p["mock_data"] or not (p["eval_iters"] > 0 or p["full_validation"]):
        return
    asks = p.where("eval_iters" if p["eval_iters"] > 0 else "full_validation")
    way_out = "or switch validation off (eval_iters: 0)"
    text = split(p)
    if text is not None and _shares(text)[1] == 0:
        share = f"{p.where('split')} leaves no documents for it: give its second share a value"
        yield f"{asks} asks for validation, but {share}, {way_out}."
    elif _any(p, _OWN_SOURCES) and split_blends(p)["valid"] is None:
        yield f"{asks} asks for validation, but there is no data for it: set valid_data_path, {way_out}."


def validation_is_not_trained_on(p: Params) -> Problems:
    """What was trained on proves nothing in validation."""
    blends = split_blends(p)
    train = set(blends["train"].prefixes) if blends["train"] else set()
    for name in ("valid", "test"):
        own = blends[name]
        for prefix in sorted(train & set(own.prefixes if own else ())):
            key = f"{name}_data_path" if p[f"{name}_data_path"] else "per_split_data_args_path"
            yield (
                f"{prefix} stands in the training data and in the {name} data ({key}, {p.source(key)}), each document in both: "
                "give each its own files, or use data_path with split."
            )


def validation_sets_are_separate(p: Params) -> Problems:
    """Several validation sets are whole sets side by side."""
    if not p["multiple_validation_sets"]:
        return
    own = split_blends(p)["valid"]
    if not p["full_validation"]:
        yield f"{p.where('multiple_validation_sets')} needs full_validation: true (it is {p.where('full_validation')})."
    if own is None:
        yield f"{p.where('multiple_validation_sets')} needs valid_data_path, a list of prefixes."
    elif own.weights is not None:
        yield f"{p.where('multiple_validation_sets')} reports each set whole, but valid_data_path has weights: drop them."


def whole_validation_has_no_weights(p: Params) -> Problems:
    """Weights share out a number of samples; a full pass over the validation split has none."""
    if not p["full_validation"] or p["multiple_validation_sets"] or p["mock_data"]:
        return
    source = blend(p) or split_blends(p)["valid"]
    if source is not None and source.weights is not None and len(source.prefixes) > 1:
        key = next(key for key in ("data_path", "data_args_path", "valid_data_path", "per_split_data_args_path") if p[key])
        yield (
            f"{p.where('full_validation')} takes each validation sample once, but {key} ({p.source(key)}) has weights, which "
            "repeat samples or leave some out: list prefixes without weights (valid_data_path may differ from "
            "train_data_path), or set full_validation: false."
        )


def masks_can_act(p: Params) -> Problems:
    """Attention stops at the end of a document only through an explicit mask."""
    mask = "create_attention_mask_in_dataloader"
    if p["reset_attention_mask"] and not p[mask]:
        yield f"{p.where('reset_attention_mask')} acts through a mask: set {mask}: true (it is {p.where(mask)})."


DERIVATIONS: tuple[Derivation, ...] = (mock_data_replaces_files, own_data_lay_preset_split_aside, default_split)


def loader_is_one_of_ours(p: Params) -> Problems:
    """`external` takes a dataset that loads itself; indexed files and mock data do not."""
    if p["dataloader_type"] == "external":
        yield f"{p.where('dataloader_type')} takes a dataset that loads itself, and none here does: use single or cyclic."


RULES: tuple[Rule, ...] = (
    loader_is_one_of_ours,
    source_is_one,
    blends_are_readable,
    prefixes_are_prefixes,
    split_is_readable,
    training_has_documents,
    evaluation_has_documents,
    validation_is_not_trained_on,
    validation_sets_are_separate,
    whole_validation_has_no_weights,
    masks_can_act,
)


def _any(p: Params, keys: tuple[str, ...]) -> bool:
    return any(p[key] for key in keys)


def _readable(key: str, read: Callable[[], _T]) -> _T:
    """Return what `read` gives; its fault is `blends_are_readable`'s to report."""
    try:
        return read()
    except ValueError:
        raise Unreadable(key) from None


def _shares(text: str) -> tuple[float, float, float]:
    return _readable("split", lambda: split_shares(text))


def _given_blends(p: Params, key: str) -> list[Any]:
    """Return the blends that a key gives, unparsed."""
    if not p[key]:
        return []
    if key == "data_args_path":
        return [read_words(p.input_path(p[key]))]
    if key == "per_split_data_args_path":
        return [words for words in read_split_lists(p.input_path(p[key])).values() if words]
    return [p[key]]


def _prefixes(p: Params, key: str) -> list[str]:
    return [prefix for words in _given_blends(p, key) for prefix in _blend(p, words).prefixes]


def _own_blend(p: Params, name: str, words: Any) -> Blend | None:
    return _readable(name, lambda: _blend(p, words)) if words else None


def _blend(p: Params, words: Any) -> Blend:
    prefixes, weights = parse_blend(words)
    return Blend(prefixes=tuple(p.input_path(prefix) for prefix in prefixes), weights=weights)
