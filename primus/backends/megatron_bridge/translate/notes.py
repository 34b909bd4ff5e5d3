"""What a user set that changes nothing here: `without_effect` is the name to use."""

from collections.abc import Iterator

from primus.backends.megatron_bridge.container import GPTDatasetConfig
from primus.backends.megatron_bridge.translate.fields import OF_ROWS_WITHOUT_EFFECT, WITHOUT_EFFECT
from primus.backends.megatron_bridge.translate.raw import Raw

__all__ = ["without_effect"]

_SPECS = "dataset.packed_sequence_specs"


def without_effect(raw: Raw) -> Iterator[str]:
    """Yield a line for each field that the user set and that nothing reads, with the reason."""
    documents = isinstance(raw.config.dataset, GPTDatasetConfig)
    for path, why in {**WITHOUT_EFFECT, **({} if documents else OF_ROWS_WITHOUT_EFFECT)}.items():
        if raw.is_chosen(path):
            yield f"{raw.where(path)} has no effect: {why}."
    yield from _packs(raw)
    yield from _vocabulary(raw)
    yield from _tokenizer(raw)
    yield from _products(raw)
    yield from _sums(raw)
    yield from _dtype(raw)


def _packs(raw: Raw) -> Iterator[str]:
    specs = raw.at(_SPECS)
    if specs is None or specs.packed_sequence_size > 0:
        return
    for path in raw.sources:
        if path.startswith(f"{_SPECS}.") and path != f"{_SPECS}.packed_sequence_size":
            yield f"{raw.where(path)} has no effect: nothing is packed; set packed_sequence: true."


def _vocabulary(raw: Raw) -> Iterator[str]:
    path, kind = "tokenizer.vocab_size", raw.config.tokenizer.tokenizer_type
    if raw.is_chosen(path) and kind != "NullTokenizer":
        yield f"{raw.where(path)} has no effect: a tokenizer of type {kind} says how many ids there are."


def _tokenizer(raw: Raw) -> Iterator[str]:
    """Pretraining flavors take no weights from `hf_path`, and some no tokenizer either."""
    path, kind = "checkpoint.hf_path", "tokenizer.tokenizer_type"
    if raw.is_chosen(path) and not raw.is_chosen(kind) and raw.at(kind) == "NullTokenizer":
        yield (
            f"hf_path ({raw.source(path)}) names no tokenizer here: recipe {raw.recipe} pretrains on numbers; set "
            "use_null_tokenizer: false."
        )


def _products(raw: Raw) -> Iterator[str]:
    path, model = "comm_overlap.tp_comm_overlap", raw.config.model
    if raw.is_chosen(path) and raw.at(path) and not (model.tensor_model_parallel_size > 1 and model.sequence_parallel):
        yield (
            f"{raw.where(path)} has no effect: it needs tensor_model_parallel_size of 2 or more and sequence_parallel: true "
            f"(they are {model.tensor_model_parallel_size} and {str(model.sequence_parallel).lower()})."
        )


def _sums(raw: Raw) -> Iterator[str]:
    path, halves = "mixed_precision.grad_reduce_in_fp32", ("mixed_precision.bf16", "mixed_precision.fp16")
    if raw.is_chosen(path) and not raw.at(path) and not any(map(raw.at, halves)):
        yield f"{raw.where(path)} has no effect: gradients of fp32 weights are summed in fp32."


def _dtype(raw: Raw) -> Iterator[str]:
    """A map of precision takes the place of the recipe's name, and of the dtype that this says."""
    part, dtypes = "mixed_precision", ("fp32", "bf16", "fp16")
    places = [place for path, place in raw.sources.items() if path.startswith(f"{part}.")]
    if places and not any(raw.at(f"{part}.{name}") or raw.is_chosen(f"{part}.{name}") for name in dtypes):
        yield f"precision_config ({places[0]}) names no dtype, so weights are fp32; bf16: true beside it says otherwise."
