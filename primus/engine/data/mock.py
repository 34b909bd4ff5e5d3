"""`MockCorpus`: 100,000 made-up documents for `mock_data`; document i counts 1, 2, 3, ... modulo the vocabulary. No torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MockCorpus"]


class MockCorpus:
    """Documents of 1 to 4095 tokens, the last one end-of-document; equal on every machine and for every seed."""

    prefix = "mock data"

    def __init__(self, *, vocab_size: int, eod: int, num_documents: int = 100_000) -> None:
        self._vocab_size, self._eod = vocab_size, eod
        self.sequence_lengths = np.random.default_rng(seed=0).integers(1, 4096, size=num_documents, dtype=np.int32)

    def get(self, sequence: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the tokens [start, stop) of a document."""
        length = int(self.sequence_lengths[sequence])
        tokens = (np.arange(length) + 1) % self._vocab_size
        tokens[-1] = self._eod
        return tokens[start:stop]
