"""`train_tokenizer`: a byte-level BPE tokenizer from text, saved as a Hugging Face folder. No torch."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from primus.engine.data.output import check_output_folder, writing
from primus.engine.data.prepare.sources import LineCounter, cut_into_units, find_files, read_unit
from primus.errors import InputError

__all__ = ["TrainedTokenizer", "train_tokenizer"]

END_OF_TEXT = "<|endoftext|>"
_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_SHOWN = 5


@dataclass(slots=True)
class TrainedTokenizer:
    """What became of the text."""

    vocab_size: int = 0
    num_read: int = 0
    """Documents with text."""
    num_broken: int = 0
    """Documents that cannot be read."""
    broken: list[str] = field(default_factory=list)
    """The first of these: place and reason."""


def train_tokenizer(
    inputs: Sequence[str],
    folder: Path,
    *,
    vocab_size: int,
    json_key: str = "text",
    overwrite: bool = False,
    show_progress: bool = True,
) -> TrainedTokenizer:
    """Write `folder/tokenizer.json` and its config; the vocabulary has `vocab_size` ids at most.

    `tokenizer_type: HuggingFaceTokenizer` with `tokenizer_model: FOLDER` uses it. Documents end with `<|endoftext|>`. What
    cannot be read is left out and reported; InputError if that is everything.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise InputError(f"vocab_size is {vocab_size}; byte-level BPE needs 256 ids for the bytes and one for {END_OF_TEXT}")
    check_output_folder(folder, [_TOKENIZER, _SETTINGS])
    target = folder / _TOKENIZER
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; choose another folder, or give --overwrite")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    report = TrainedTokenizer()
    tokenizer.train_from_iterator(_texts(inputs, json_key, report), trainer)
    if not report.num_read:
        raise InputError(f"there is no text to train a tokenizer on: {'; '.join(report.broken) or 'the files are empty'}")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "bos_token": END_OF_TEXT}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(target, tokenizer.to_str(pretty=True))
        _write(folder / _SETTINGS, json.dumps(settings, indent=1))
    report.vocab_size = tokenizer.get_vocab_size()
    return report


def _write(file: Path, text: str) -> None:
    """Let a file appear whole: what a full disk cuts short is neither a tokenizer nor in the way of the next one."""
    draft = file.with_name(f"{file.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _texts(inputs: Sequence[str], json_key: str, report: TrainedTokenizer) -> Iterator[str]:
    """Yield what can be read, and count."""
    lines = LineCounter()
    for unit in cut_into_units(find_files(inputs)):
        for document in read_unit(unit, json_key):
            if document.problem is None:
                if document.text:
                    report.num_read += 1
                    yield document.text
                continue
            report.num_broken += 1
            if len(report.broken) < _SHOWN:
                report.broken.append(f"{lines.place(unit, document.file, document.line)} {document.problem}")
