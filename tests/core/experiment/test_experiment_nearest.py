"""Suggestions: which known words a user may have meant."""

import pytest

from primus.core.experiment.nearest import nearest

KNOWN = [
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "async_tensor_model_parallel_allreduce",
    "lr_decay_style",
    "lr_decay_iters",
    "HuggingFaceTokenizer",
    "TikTokenizer",
    "--nproc-per-node",
    "--nnodes",
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("micro_batchsize", ["micro_batch_size"]),
        ("micro_bach_size", ["micro_batch_size"]),
        ("mirco_batch_size", ["micro_batch_size"]),
        ("tensor_model_parallel", ["tensor_model_parallel_size"]),
        ("lr_decay", ["lr_decay_style", "lr_decay_iters"]),
        ("HFTokenizer", ["HuggingFaceTokenizer"]),
        ("--nproc", ["--nproc-per-node"]),
        ("zzz", []),
    ],
)
def test_the_most_particular_likeness_wins(word: str, found: list[str]) -> None:
    assert nearest(word, KNOWN)[: len(found) or None] == found
