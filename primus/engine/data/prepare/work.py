"""What a worker process of `prepare` does: `tokenize_unit` turns one unit into its part. No torch.

The processes are the parallelism: the tokenizer's own threads beside them would only take turns on the cores.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

from primus.engine.config import TokenizerConfig
from primus.engine.data.prepare.parts import Part, write_part
from primus.engine.data.prepare.sources import Document, Unit, read_unit
from primus.engine.data.tokenizer import Tokenizer, build_tokenizer
from primus.errors import RunError

__all__ = ["Work", "parts_of", "tokenize_unit"]

_BATCH = 256
"""Documents tokenized by one call."""
_BATCH_CHARACTERS = 1 << 20
"""Characters after which a call is made anyway."""
_KEPT = 20
"""Empty and broken documents that a part names of each kind."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is equal for all units."""

    folder: Path
    tokenizer: TokenizerConfig
    json_key: str
    append_eod: bool
    dtype: str


def tokenize_unit(work: Work, tokenizer: Tokenizer, number: int, unit: Unit) -> Part:
    """Write the part of a unit and return what it came to."""
    part, lengths = Part(size=unit.size), list[int]()
    draft = work.folder / f"{number:06d}.bin.{os.getpid()}.tmp"
    end = [tokenizer.eod] if work.append_eod else []
    with draft.open("wb") as file:
        for documents in _batches(unit, work.json_key, part):
            ids: list[int] = []
            for document, own in _tokenized(tokenizer, documents, part):
                if own:
                    lengths.append(len(own) + len(end))
                    ids += own + end
                else:
                    _note_empty(part, document)
            file.write(np.asarray(ids, work.dtype).tobytes())
    part.documents, part.tokens = len(lengths), sum(lengths)
    write_part(work.folder, number, part, draft, lengths)
    return part


def _batches(unit: Unit, json_key: str, part: Part) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in read_unit(unit, json_key):
        if document.problem is not None:
            _note_broken(part, document, document.problem)
            continue
        batch.append(document)
        characters += len(document.text)
        if len(batch) == _BATCH or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _tokenized(tokenizer: Tokenizer, documents: list[Document], part: Part) -> Iterator[tuple[Document, list[int]]]:
    try:
        yield from zip(documents, tokenizer.tokenize_many([document.text for document in documents]), strict=True)
        return
    except Exception as error:  # noqa: BLE001 - what the tokenizers library raises has no narrower type
        if len(documents) == 1:
            _note_broken(part, documents[0], f"cannot be tokenized: {error}")
            return
    # One of them is no text of ids: find it by taking them singly.
    for document in documents:
        yield from _tokenized(tokenizer, [document], part)


def _note_empty(part: Part, document: Document) -> None:
    part.num_empty += 1
    if len(part.empty) < _KEPT:
        part.empty.append((document.file, document.line, ""))


def _note_broken(part: Part, document: Document, problem: str) -> None:
    part.num_broken += 1
    if len(part.broken) < _KEPT:
        part.broken.append((document.file, document.line, problem))


@contextmanager
def parts_of(numbers: Sequence[int], units: Sequence[Unit], *, count: int, work: Work) -> Iterator[Iterator[Part]]:
    """Give the parts of the units, in order, as `count` processes make them; leaving lets units under way end.

    The processes are spawned, so that they inherit neither threads nor open files.
    """
    executor = ProcessPoolExecutor(count, get_context("spawn"), _open_worker, (work,))
    try:
        yield executor.map(_tokenize_here, numbers, units)
    except BrokenProcessPool as error:
        raise RunError(
            "a worker process was killed, perhaps for want of memory; the same command goes on with what is missing: "
            "give it fewer --workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


_here: list["partial[Part]"] = []
"""`tokenize_unit` with the tokenizer of this worker process."""


def _open_worker(work: Work) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _here.append(partial(tokenize_unit, work, build_tokenizer(work.tokenizer)))


def _end_with_parent() -> None:
    """Leave when the main process is gone, also if it was killed: a worker would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _tokenize_here(number: int, unit: Unit) -> Part:
    return _here[0](number, unit)
