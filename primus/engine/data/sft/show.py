"""`stretches`: the text of a sample, with the trained parts told from the rest. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from primus.engine.data.sft.samples import Sample
from primus.engine.data.tokenizer import Tokenizer

__all__ = ["Stretch", "stretches"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens in a row that are all trained, or none of them."""

    text: str
    is_trained: bool


def stretches(sample: Sample, tokenizer: Tokenizer) -> Iterator[Stretch]:
    """Yield the text of a sample; the first token cannot be trained, for nothing comes before it."""
    trained = [False, *sample.trained[1:].tolist()]
    for is_trained, tokens in groupby(zip(sample.ids.tolist(), trained, strict=True), key=lambda each: each[1]):
        yield Stretch(tokenizer.detokenize([token for token, _ in tokens]), is_trained)
