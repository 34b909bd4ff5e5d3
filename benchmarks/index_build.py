"""Time to build the sample index of a corpus of 50M tokens for three epochs, beside a compiled walk over its documents.

Prints one JSON line. `build_s` is all that a first start does (open the files, build and keep the indices of training and
validation), `cached_s` what a second start does. Megatron-Core's compiled helper takes 0.039 s for the first on a quiet
machine of two cores. `walk_s` and `ours_walk_s` are the part that is compiled there, the walk from sample to sample, and the
same in numpy, alternating in one run; `compiled_build_s` is our build with the one in place of the other. Null where no C
compiler is found.
"""

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from primus.engine.config import Blend, DatasetConfig
from primus.engine.data import gpt_index
from primus.engine.data.datasets import build_datasets
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.indexed import IndexedDataset, IndexedDatasetBuilder
from primus.engine.data.splits import Sizes

SEQ_LENGTH = 512
WALK = """
void walk(const int *lengths, const int *order, int seq, long total, int *out) {
    int document = 0, offset = 0;
    out[0] = out[1] = 0;
    for (long k = 1; k <= total; ++k) {
        int left = seq;
        while (left >= lengths[order[document]] - offset) {
            left -= lengths[order[document]] - offset;
            ++document;
            offset = 0;
        }
        offset += left;
        out[2 * k] = document;
        out[2 * k + 1] = offset;
    }
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatokens", type=float, default=50.0)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus", arguments.megatokens)
        first, cached, samples = [], [], 0
        for repeat in range(arguments.repeats):
            for times in (first, cached):
                seconds, samples = timed(lambda r=repeat: open_datasets(folder / "corpus", folder / f"cache-{r}"))
                times.append(seconds)
        walk_s, ours_s = walks(folder, arguments.repeats)
    build_s = statistics.median(first)
    row = {
        "what": "index",
        "megatokens": arguments.megatokens,
        "samples": samples,
        "build_s": round(build_s, 4),
        "build_best_s": round(min(first), 4),
        "cached_s": round(statistics.median(cached), 4),
        "walk_s": walk_s,
        "ours_walk_s": ours_s,
        "compiled_build_s": None if walk_s is None else round(build_s - ours_s + walk_s, 4),
    }
    print(json.dumps(row))


def write_corpus(prefix: Path, megatokens: float) -> None:
    """Write documents of log-normal lengths."""
    draw = np.random.default_rng(0)
    tokens = 0
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        while tokens < megatokens * 1e6:
            length = int(np.clip(draw.lognormal(6.2, 1.0), 16, 20_000))
            builder.add_document(draw.integers(0, 8192, length))
            tokens += length


def open_datasets(prefix: Path, cache: Path) -> int:
    config = DatasetConfig(blend=Blend(prefixes=(str(prefix),)), split="99,1,0", cache_path=str(cache))
    rules = SampleRules(seq_length=SEQ_LENGTH, seed=1, eod=0)
    tokens = Path(f"{prefix}.bin").stat().st_size // 2
    sizes = Sizes(train=tokens // SEQ_LENGTH * 3, valid=100, test=0)
    train = build_datasets(config, rules=rules, vocab_size=8192, sizes=sizes).train
    assert train is not None
    return len(train)


def walks(folder: Path, repeats: int) -> tuple[float | None, float]:
    """Return the median seconds of the compiled walk and of ours over three shuffled epochs."""
    lengths = np.array(IndexedDataset(folder / "corpus").sequence_lengths)
    order = np.random.default_rng(1).permutation(np.tile(np.arange(len(lengths), dtype=np.int32), 3))
    total = (3 * int(lengths.sum()) - 1) // SEQ_LENGTH
    compiled = compile_walk(folder)
    theirs, ours = [], []
    for _ in range(repeats):
        seconds, samples = timed(lambda: gpt_index._sample_starts(order, lengths, SEQ_LENGTH, total))
        ours.append(seconds)
        if compiled is not None:
            seconds, walked = timed(lambda: compiled(lengths, order, total))
            theirs.append(seconds)
            assert np.array_equal(samples, walked)
    return (round(statistics.median(theirs), 5) if theirs else None), round(statistics.median(ours), 5)


def compile_walk(folder: Path) -> Callable[..., Any] | None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = folder / "walk.c", folder / "walk.so"
    source.write_text(WALK)
    subprocess.run([compiler, "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    walk = ctypes.CDLL(str(library)).walk

    def run(lengths: np.ndarray, order: np.ndarray, total: int) -> np.ndarray:
        out = np.empty((total + 1, 2), np.int32)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (lengths, order))
        walk(*pointers, ctypes.c_int(SEQ_LENGTH), ctypes.c_long(total), out.ctypes.data_as(ctypes.c_void_p))
        return out

    return run


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
