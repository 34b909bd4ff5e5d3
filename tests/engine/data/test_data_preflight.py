"""What is said about data and tokenizer before anything starts."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus.engine.config import (
    AttentionConfig,
    Blend,
    ConfigContainer,
    DatasetConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PositionConfig,
    RunConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainConfig,
)
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.data.preflight import check_data


def corpus(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> str:
    with IndexedDatasetBuilder(prefix, np.dtype(dtype)) as builder:
        for document in documents:
            builder.add_document(document)
    return str(prefix)


def container(dataset: DatasetConfig, *, vocab_size: int | None = None, **evaluation: Any) -> ConfigContainer:
    return ConfigContainer(
        run=RunConfig(work_group="g", user_name="u", exp_name="e", folder="/r"),
        train=TrainConfig(micro_batch_size=1, global_batch_size=8, train_iters=6, evaluation=EvaluationConfig(**evaluation)),
        model=ModelConfig(
            num_layers=1,
            hidden_size=8,
            ffn_hidden_size=8,
            seq_length=8,
            vocab_size=vocab_size,
            attention=AttentionConfig(num_attention_heads=1, num_query_groups=1, kv_channels=8),
            position=PositionConfig(max_position_embeddings=8),
        ),
        optimizer=OptimizerConfig(lr=1e-3),
        scheduler=SchedulerConfig(lr_decay_steps=48, weight_decay_incr_steps=48),
        dataset=dataset,
        tokenizer=TokenizerConfig(type="NullTokenizer", vocab_size=99),
    )


def problem(config: ConfigContainer) -> str:
    (text,) = check_data(config)[0]
    return text


def test_sound_data_have_no_problem_and_give_the_vocabulary(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", [[1, 2, 99]] * 100)
    config = container(DatasetConfig(blend=Blend(prefixes=(prefix,)), split="80,10,10"), eval_iters=2, eval_interval=2)
    assert check_data(config) == ([], 100)
    assert check_data(container(DatasetConfig(mock_data=True), eval_iters=2)) == ([], 100)


def test_every_missing_or_damaged_prefix_is_named(tmp_path: Path) -> None:
    good, short = corpus(tmp_path / "good", [[1, 2]]), corpus(tmp_path / "short", [[1, 2]])
    Path(f"{short}.bin").write_bytes(b"")
    blend = Blend(prefixes=(good, short, str(tmp_path / "none")))
    problems, _ = check_data(container(DatasetConfig(train_blend=blend)))
    assert len(problems) == 2 + 1
    assert "short.bin is truncated" in problems[0]
    assert "none.idx does not exist" in problems[1]
    assert "good holds 2 tokens, less than one sample" in problems[2]


def test_a_split_left_without_documents_is_named_if_it_is_asked(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", [[1] * 50] * 9)
    dataset = DatasetConfig(blend=Blend(prefixes=(prefix,)), split="969,30,1")
    problems, _ = check_data(container(dataset, eval_iters=2, eval_interval=2))
    assert [text.split(",")[0] for text in problems] == [
        "the valid split asks for 64 samples",
        "the test split asks for 16 samples",
    ]
    assert f"dataset {prefix} holds 0 documents" in problems[0]
    assert check_data(container(dataset))[0] == []


def test_data_of_another_tokenizer_are_noticed(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", [[1, 2], [100, 3]] * 20)
    text = problem(container(DatasetConfig(train_blend=Blend(prefixes=(prefix,)))))
    assert text.startswith(f"dataset {prefix} holds the id 100, but the tokenizer has 100 ids")


def test_negative_ids_are_noticed(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", [[1, 2], [-7, 200]] * 20, np.int32)
    text = problem(container(DatasetConfig(train_blend=Blend(prefixes=(prefix,)))))
    assert text.startswith(f"dataset {prefix} holds the id -7, but the tokenizer has 100 ids, from 0 on")


def test_a_vocabulary_larger_than_the_models_is_refused() -> None:
    assert "the tokenizer has 100 ids, the model's vocab_size is 64" in problem(
        container(DatasetConfig(mock_data=True), vocab_size=64)
    )


def test_a_tokenizer_that_cannot_be_opened_is_a_problem_beside_the_others(tmp_path: Path) -> None:
    config = container(DatasetConfig(train_blend=Blend(prefixes=(str(tmp_path / "none"),))))
    problems, size = check_data(replace(config, tokenizer=TokenizerConfig(type="SentencePieceTokenizer", model="no.model")))
    assert size is None
    assert ["no.model does not exist" in problems[0], "none.idx does not exist" in problems[1]] == [True, True]


@pytest.mark.parametrize("module", ["preflight", "datasets", "indexed", "prepare", "tokenizer"])
def test_looking_at_data_needs_no_torch(module: str) -> None:
    code = f"import sys, primus.engine.data.{module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
