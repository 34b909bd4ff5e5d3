"""The container survives its file form, and a bad file is refused with every problem at once."""

from pathlib import Path

import pytest

from primus.engine.config import (
    AttentionConfig,
    Blend,
    ConfigContainer,
    DatasetConfig,
    ModelConfig,
    OptimizerConfig,
    PositionConfig,
    RunConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainConfig,
    serialize,
)
from primus.errors import ConfigError


def small_container() -> ConfigContainer:
    return ConfigContainer(
        run=RunConfig(work_group="g", user_name="u", exp_name="e", folder="/runs/g/u/e"),
        train=TrainConfig(micro_batch_size=1, global_batch_size=8, train_iters=3, rampup_batch_size=(2, 2, 12)),
        model=ModelConfig(
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=64,
            seq_length=16,
            vocab_size=None,
            attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=8),
            position=PositionConfig(max_position_embeddings=64),
        ),
        optimizer=OptimizerConfig(lr=1e-5),
        scheduler=SchedulerConfig(lr_decay_steps=10, weight_decay_incr_steps=10),
        dataset=DatasetConfig(blend=Blend(prefixes=("a", "b"), weights=(0.5, 0.5))),
        tokenizer=TokenizerConfig(type="NullTokenizer"),
    )


def test_container_read_back_equals_container_written(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(serialize.dump(small_container(), {"optimizer.lr": "exp.yaml:3"}))
    assert "lr: 1.0e-05  # exp.yaml:3" in file.read_text()
    assert serialize.load(file) == small_container()


def test_an_experiment_is_sent_to_the_command_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("modules:\n  pre_trainer: {framework: megatron}\n")
    with pytest.raises(ConfigError, match="is an experiment, from which `primus train pretrain --config"):
        serialize.load(tmp_path / "my.yaml")


def test_all_problems_of_a_file_are_reported_together() -> None:
    data = serialize.to_dict(small_container())
    data["train"]["micro_batch_sise"] = 1
    data["train"]["rampup_batch_size"] = [2, 2]
    data["model"]["activation"] = "relu"
    data["optimizer"]["lr"] = "fast"
    with pytest.raises(ConfigError) as caught:
        serialize.from_dict(data)
    text = str(caught.value)
    for part in (
        "train.micro_batch_sise: unknown",
        "train.rampup_batch_size: expected 3",
        "model.activation: 'relu'",
        "'fast'",
    ):
        assert part in text
