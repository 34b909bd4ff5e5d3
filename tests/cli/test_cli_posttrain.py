"""`primus train posttrain` on input that is wrong: exit code 2, and a message with key, place and what would be right."""

import json
import shutil
from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[1] / "data" / "hf" / "llama"


@pytest.fixture
def weights(rows):
    """Give the model of the rows weights."""
    for name in ("model.safetensors", "config.json"):
        shutil.copy(RECORDED / name, rows / "model")
    return rows


def refused(primus, *words):
    outcome = primus("train", "posttrain", "--config", "exp.yaml", "--dry-run", *words)
    assert outcome.code == 2
    return outcome.err


def test_a_run_that_is_right(primus, weights):
    outcome = primus("train", "posttrain", "--config", "exp.yaml", "--dry-run")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert f"the newest checkpoint in {weights}/out/g/u/rows/checkpoints, if there is one, else {weights}/model" in said


@pytest.mark.usefixtures("weights")
def test_a_plan_names_weights_that_are_elsewhere(primus, monkeypatch):
    monkeypatch.setattr("primus.hub.is_reachable", lambda: False)
    words = ("recipe=qwen.qwen3", "flavor=qwen3_600m_finetune_config", "hf_path=no/such")
    outcome = primus("train", "posttrain", "--config", "exp.yaml", "--dry-run", *words)
    assert "if there is one, else no/such" in " ".join(outcome.out.split()), outcome.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("recipe=auton",), "recipe auton: there is no module primus.backends.megatron_bridge.recipes.auton, "),
        (("recipe=auton",), "Did you mean auto? (cli)"),
        (("flavor=finetun_config",), "flavor finetun_config: recipe auto has none of that name. Did you mean finetune_config"),
        (
            ("mock=true",),
            "mock true (cli): auto finetune_config does not take it; `primus config recipes` lists what it takes.",
        ),
        (("dataset.dataset_root=''",), 'dataset.dataset_root "" (cli as dataset.dataset_root) must name rows; leave it out'),
        (("peft_dimm=3",), "peft_dimm 3 (cli) is not a key of framework megatron_bridge. Did you mean peft_dim"),
        (
            ("dataset.dataset_kwargs.chat=true",),
            "model has no chat template, which conversations need: set dataset.dataset_kwargs.chat_template, or choose the "
            "tokenizer of a chat model (hf_path, exp.yaml:11)",
        ),
        (
            ("seq_length=8", "dataset.dataset_kwargs.truncation_method=error"),
            "rows/training.jsonl:1 has 14 tokens, more than the 8 of a sequence: raise seq_length, or let "
            "dataset.dataset_kwargs.truncation_method be right or left (dataset, exp.yaml:12 as dataset.dataset_root)",
        ),
    ],
)
@pytest.mark.usefixtures("weights")
def test_words_that_are_wrong(primus, words, said):
    assert said in refused(primus, *words)


def test_rows_without_a_field_are_told_by_file_and_line(primus, weights):
    with (weights / "rows/training.jsonl").open("a") as file:
        file.write(json.dumps({"input": "who"}) + "\n")
    said = "rows/training.jsonl:10 has no field output, the answer; it has input (dataset, exp.yaml:12 as dataset.dataset_root)"
    assert said in refused(primus)


@pytest.mark.usefixtures("weights")
def test_weights_of_another_model_are_told_field_by_field(primus):
    said = refused(primus, "recipe=gpt.vanilla_gpt", "flavor=vanilla_gpt_finetune_config")
    for field, ours, theirs in (("hidden_size", 64, 48), ("ffn_hidden_size", 128, 64), ("vocab_size", 512, 128)):
        assert f"model.{field} is {ours} in this run, and {theirs} in " in said
    assert "model/config.json (hf_path, exp.yaml:11)" in said
    assert "are of another model: correct hf_path, or take the model of its config.json" in said


@pytest.mark.usefixtures("rows")
def test_a_folder_without_weights(primus):
    assert "model holds neither model.safetensors nor model.safetensors.index.json; save weights of another" in refused(primus)
