"""What a container says of rows and packs reaches the engine's configuration, or is refused with its place."""

from typing import Any

import pytest

from primus.backends.megatron_bridge.config_utils import load_recipe_config
from primus.backends.megatron_bridge.container import PackedSequenceSpecs
from primus.backends.megatron_bridge.translate.data import row_values, rows
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.engine.config import SFTConfig

SPECS = "dataset.packed_sequence_specs"


def made(sources: dict[str, str] | None = None, **specs: Any) -> tuple[SFTConfig | None, list[str], Raw]:
    """Return the engine's rows of a flavor that packs into 4096, with these values of its packs, and the problems."""
    config = load_recipe_config({"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_sft_config"})
    kwargs = specs.pop("kwargs", None)
    config.dataset.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=config.model.seq_length, **specs)
    config.dataset.dataset_kwargs = kwargs
    raw = Raw(config=config, sources=sources or {}, recipe="gpt.vanilla_gpt")
    problems: list[str] = []
    return rows(raw, config.dataset, problems), problems, raw


def test_packs_are_told_to_the_engine() -> None:
    found, problems, _ = made(
        tokenizer_model_name="mine",
        packed_train_data_path="/p/train.parquet",
        packed_val_data_path="/p/val/*.parquet",
        packed_metadata_path="/p/meta.jsonl",
        pad_seq_to_mult=8,
        max_single_sequence_length=100,
        num_tokenizer_workers=3,
    )
    assert found is not None
    assert found.packing is not None
    assert not problems
    files = (found.packing.train_file, found.packing.validation_file, found.packing.metadata_file)
    assert files == ("/p/train.parquet", "/p/val/*.parquet", "/p/meta.jsonl")
    assert (found.packing.pad_multiple, found.packing.max_sample_length) == (8, 100)
    assert (found.workers, found.cache_name) == (3, "mine")


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ({"pad_seq_to_mult": 0}, "pad_seq_to_mult 0 (exp.yaml:7) must be at least 1."),
        ({"max_single_sequence_length": 1}, "max_single_sequence_length 1 (exp.yaml:7) must be at least 2."),
        ({"max_single_sequence_length": 10**6}, "max_single_sequence_length 1000000 (exp.yaml:7) must be at most"),
        ({"num_tokenizer_workers": 0}, "num_tokenizer_workers 0 (exp.yaml:7) must be at least 1 or -1, one a core."),
        ({"packed_val_data_path": "a"}, "packed_val_data_path a (exp.yaml:7) goes with packed_train_data_path"),
        ({"packed_metadata_path": "a"}, "packed_metadata_path a (exp.yaml:7) goes with packed_train_data_path"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_packs_that_cannot_be_are_refused(specs: dict[str, Any], said: str) -> None:
    _, problems, _ = made({f"{SPECS}.{name}": "exp.yaml:7" for name in specs}, **specs)
    assert len(problems) == 1
    assert problems[0].startswith(f"{SPECS}.{said}")


@pytest.mark.parametrize(
    ("kwargs", "loss_on"),
    [
        ({}, "answers"),
        ({"answer_only_loss": False}, "all"),
        ({"loss_mode": "completion"}, "answers"),
        ({"loss_mode": "assistant", "answer_only_loss": True}, "answers"),
        ({"loss_mode": "last_turn"}, "last_answer"),
        ({"loss_mode": "full"}, "all"),
    ],
)
def test_what_is_trained_is_said_by_either_word(kwargs: dict[str, Any], loss_on: str) -> None:
    found, problems, _ = made(kwargs=kwargs)
    assert found is not None
    assert (found.loss_on, problems) == (loss_on, [])


def test_words_that_contradict_one_another_or_are_none_are_refused() -> None:
    _, problems, _ = made(kwargs={"loss_mode": "full", "answer_only_loss": True})
    assert len(problems) == 1
    assert "answer_only_loss true" in problems[0]
    assert "contradicts dataset.dataset_kwargs.loss_mode full" in problems[0]
    _, (small,), _ = made(kwargs={"pad_seq_length_to_mult": 0})
    assert small.startswith("dataset.dataset_kwargs.pad_seq_length_to_mult 0 (")
    assert small.endswith("must be at least 1.")
    _, (problem,), _ = made(kwargs={"loss_mode": "some"})
    assert "loss_mode some" in problem
    assert problem.endswith("must be one of completion, assistant, last_turn, full.")


def test_loader_processes_lengths_and_the_folder_of_tokens_are_those_that_are_asked_for() -> None:
    kwargs = {"index_mapping_dir": "/cache", "pad_seq_length_to_mult": 64}
    found, _, raw = made({"dataset.num_workers": "exp.yaml:7"}, kwargs=kwargs)
    assert found is not None
    assert (found.cache, found.pad_multiple) == ("/cache", 64)
    raw.config.dataset.num_workers = 5
    value = row_values(raw, raw.config.dataset)["num_workers"]
    assert (value.value, value.source) == (5, "exp.yaml:7")
