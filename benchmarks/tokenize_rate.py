"""Rate of `primus data prepare` beside the raw `encode_batch` of the tokenizers library, alternating in one run.

Prints one JSON line: megabytes and tokens a second of both, and the median ratio of the pairs (goal: 0.8 or more). Both get
the same JSON-lines file: ours is the command, from its start to finished .bin/.idx files; theirs only encodes texts that are
in memory already.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

from primus.engine.data.indexed import IndexedDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = write_texts(folder / "in.jsonl", arguments.megabytes)
        primus("train-tokenizer", str(folder / "in.jsonl"), "--output", str(folder / "tok"), "--vocab-size", "8192")
        tokenizer = Tokenizer.from_file(str(folder / "tok" / "tokenizer.json"))
        pairs = [(raw(tokenizer, texts), ours(folder)) for _ in range(arguments.pairs)]
        tokens = int(IndexedDataset(folder / "out").sequence_lengths.sum()) - len(texts)
    raw_s, ours_s = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    row = {
        "what": "tokenize and write",
        "megabytes": round(sum(map(len, texts)) / 1e6, 1),
        "tokens": tokens,
        "raw_tokens_s": round(tokens / raw_s),
        "ours_tokens_s": round(tokens / ours_s),
        "ratio": round(statistics.median(raw / ours for raw, ours in pairs), 3),
        "ratios": [round(raw / ours, 3) for raw, ours in pairs],
    }
    print(json.dumps(row))


def write_texts(file: Path, megabytes: float) -> list[str]:
    """Write documents of made-up words with the frequencies of a natural text."""
    draw = random.Random(7)
    syllables = [a + b for a in "bcdfglmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "on", "st")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(30_000)]
    weights = [1.0 / (rank + 3) for rank in range(len(words))]
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        texts.append(" ".join(draw.choices(words, weights, k=400)) + ".\n")
        size += len(texts[-1])
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def raw(tokenizer: Tokenizer, texts: list[str]) -> float:
    """Return the seconds of one call that encodes all texts on all cores."""
    start = time.perf_counter()
    tokenizer.encode_batch(texts)
    return time.perf_counter() - start


def ours(folder: Path) -> float:
    """Return the seconds of the whole command."""
    start = time.perf_counter()
    prefix, tokenizer = str(folder / "out"), str(folder / "tok")
    primus("prepare", str(folder / "in.jsonl"), "--output-prefix", prefix, "--tokenizer-model", tokenizer, "--overwrite")
    return time.perf_counter() - start


def primus(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "primus.cli.main", "data", *words], check=True, capture_output=True)


if __name__ == "__main__":
    main()
