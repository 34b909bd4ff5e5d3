"""`Tokens`: all samples of some rows as flat arrays, made once by several processes, kept on disk and mapped by every rank."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus.cores import num_cores
from primus.engine.data.cache import cached_arrays
from primus.engine.data.sft.samples import Sample, Samples
from primus.engine.lifeline import end_with_parent
from primus.errors import InputError, RunError

__all__ = ["CACHE_KEY", "NAMES", "Chunk", "Progress", "Tokens", "joined", "tokenised"]

CACHE_KEY = "dataset.dataset_kwargs.index_mapping_dir"
"""The key that moves the folder."""
NAMES = ("ids", "trained", "bounds", "lost")
_CHUNK = 256
"""Rows that a process takes at once."""
_FORKS = sys.platform.startswith("linux")
"""A fork shares the index of the rows and starts in milliseconds."""

Chunk = tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int32]]
"""Ids, which are trained, lengths and lost tokens of some samples."""
Progress = Callable[[int, int], None]
"""Is told how many rows of how many are done."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The samples of rows."""

    ids: NDArray[np.int32]
    """Of one sample behind the other."""
    trained: NDArray[np.bool_]
    """Which of them are learnt."""
    bounds: NDArray[np.int64]
    """Where samples begin, and the end of the last."""
    lost: NDArray[np.int32]
    """Tokens that each sample lost to its length."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Sample:
        part = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
        return Sample(self.ids[part].astype(np.int64), np.asarray(self.trained[part]), lost=int(self.lost[number]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The inputs of each sample."""
        return np.diff(self.bounds) - 1

    @property
    def num_trained(self) -> NDArray[np.int64]:
        """The tokens of each sample that have a loss."""
        sums = np.add.reduceat(self.trained, self.bounds[:-1], dtype=np.int64)
        return sums - self.trained[self.bounds[:-1]]


def tokenised(
    samples: Samples, folder: Path, description: Mapping[str, Any], *, workers: int = 0, progress: Progress | None = None
) -> Tokens:
    """Return samples from `folder`, or make them and keep them there, by so many processes (0: one a core).

    InputError if the folder cannot be used, or a row is no sample; the first such row of the file is named.
    """

    build = partial(_made, samples, folder, workers, progress)
    return Tokens(*cached_arrays(folder, "tokens", description, NAMES, build, key=CACHE_KEY))


def _made(samples: Samples, folder: Path, workers: int, progress: Progress | None) -> list[NDArray[Any]]:
    with _chunks(samples, workers) as chunks:
        return joined(_noted(chunks, len(samples), progress), folder)


def joined(chunks: Iterable[Chunk], folder: Path) -> list[NDArray[Any]]:
    """Return the arrays of `NAMES`; they grow in files without a name, since there may be more tokens than memory.

    The files are gone with this process, also if it is killed.
    """
    lengths: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    lost: list[NDArray[np.int32]] = []
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder) as ids, TemporaryFile(dir=folder) as trained:
        for chunk in chunks:
            ids.write(chunk[0].tobytes())
            trained.write(chunk[1].tobytes())
            lengths.append(chunk[2])
            lost.append(chunk[3])
        ids.flush()
        trained.flush()
        kept: list[NDArray[Any]] = [np.memmap(ids, np.int32, mode="r"), np.memmap(trained, np.bool_, mode="r")]
    return [*kept, np.concatenate(lengths).cumsum(), np.concatenate(lost)]


def _noted(chunks: Iterable[Chunk | InputError], total: int, progress: Progress | None) -> Iterator[Chunk]:
    done = 0
    for chunk in chunks:
        if isinstance(chunk, InputError):
            raise chunk
        yield chunk
        done += len(chunk[2])
        if progress is not None:
            progress(done, total)


def _chunk(samples: Samples, start: int) -> Chunk | InputError:
    try:
        made = [samples[number] for number in range(start, min(start + _CHUNK, len(samples)))]
    except InputError as error:
        # Raised by the process that asked: out of this one it would come inside a traceback.
        return error
    return (
        np.concatenate([sample.ids for sample in made]).astype(np.int32),
        np.concatenate([sample.trained for sample in made]),
        np.array([len(sample.ids) for sample in made], np.int64),
        np.array([sample.lost for sample in made], np.int32),
    )


@contextmanager
def _chunks(samples: Samples, workers: int) -> Iterator[Iterator[Chunk | InputError]]:
    """Give the chunks in the order of the rows, as several processes make them if there are enough rows."""
    starts = range(0, len(samples), _CHUNK)
    count = min(workers or num_cores(), len(starts))
    if count <= 1:
        yield map(partial(_chunk, samples), starts)
        return
    executor = ProcessPoolExecutor(count, get_context("fork" if _FORKS else "spawn"), _open_worker, (samples, os.getpid()))
    try:
        yield executor.map(_chunk_here, starts)
    except BrokenProcessPool as error:
        raise RunError(
            "a process that tokenised rows was killed, perhaps for want of memory: give fewer of them "
            "(dataset.packed_sequence_specs.num_tokenizer_workers; --workers of `primus data prepare`)"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


_here: list[Samples] = []
"""What this worker process reads."""


def _open_worker(samples: Samples, main: int) -> None:
    end_with_parent(main)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _here.append(samples)


def _chunk_here(start: int) -> Chunk | InputError:
    return _chunk(_here[0], start)
