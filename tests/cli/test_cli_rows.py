"""`primus data prepare --sft` and `show`: rows through the command line."""

import json
from inspect import signature

import pytest

from primus.backends.megatron_bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_finetune_config
from primus.backends.megatron_bridge.recipes.qwen.qwen3 import qwen3_8b_sft_config
from primus.cli.data import prepare_
from primus.engine.data.sft.packed_files import made_with


def test_an_experiments_rows_are_prepared_where_its_run_looks(primus, rows):
    done = primus("data", "prepare", "--sft", "exp.yaml")
    assert done.code == 0, done.err
    assert "training: 9 rows, 117 tokens, 63 of them trained (53.8 %), the longest row 13\n" in done.out
    assert "  5 packs of 32 tokens, 1.80 rows a pack, 73.1 % full\n" in done.out
    made = sorted(file.name.split("-")[1] for file in (rows / "rows/packed/model").glob("*.npy"))
    assert set(made) == {"tokens", "packs"}
    again = primus("data", "prepare", "--sft", "exp.yaml", "dataset.seed=7")
    assert again.out.startswith("training: 9 rows")
    assert len(list((rows / "rows/packed/model").glob("*-ids.npy"))) == 2, "of training and of validation, once each"


def test_packs_are_written_where_the_experiment_or_the_user_says(primus, rows):
    part = "dataset.packed_sequence_specs"
    words = (f"{part}.packed_train_data_path=p/t.parquet", f"{part}.packed_metadata_path=p/meta.jsonl")
    assert primus("data", "prepare", "--sft", "exp.yaml", *words).code == 0
    assert (rows / "p/t.parquet").exists()
    assert json.loads((rows / "p/meta.jsonl").read_text())["pack_size"] == 32
    assert "p/t.parquet exist already" in primus("data", "prepare", "--sft", "exp.yaml", *words).err
    shown = primus("data", "show", "exp.yaml", *words, "--samples", "1", "--start", "2")
    assert "p/t.parquet, sample 2: 14 tokens, 7 trained" in shown.out.replace("\n", "")
    files = ("rows", "--output-prefix", "q", "--tokenizer-model", "model", "--seq-length", "32", "--packed")
    assert primus("data", "prepare", "--sft", *files).code == 0
    by_length = primus("data", "prepare", "--sft", *files, "--by-length", "--overwrite")
    assert by_length.code == 0, by_length.err
    note = made_with([rows / "q/training_32.parquet"])
    assert note is not None
    assert note["packing"]["algorithm"] == "first_fit_decreasing"
    assert sorted(file.name for file in (rows / "q").glob("*.parquet")) == ["training_32.parquet", "validation_32.parquet"]


def test_samples_are_shown_with_what_is_trained_marked(primus, rows):
    shown = primus("data", "show", "exp.yaml", "--samples", "2", "--start", "4")
    assert shown.code == 0, shown.err
    named = [f"{rows}/rows/training.jsonl:{line}: 14 tokens, 7 trained" for line in (5, 6)]
    assert shown.out.splitlines()[:5] == [named[0], "is it 4[[ it is<e>]]", "", named[1], "is it 5[[ it is<e>]]"]
    options = ("rows", "--seq-length", "12", "--tokenizer-model", "model", "--split", "validation")
    assert primus("data", "show", *options).out.splitlines()[1] == "is it[[ it is<e>]]"
    assert "there are no test rows" in primus("data", "show", "exp.yaml", "--split", "test").err


def test_the_seed_of_packs_is_that_of_recipes():
    (seed,) = {each().dataset.seed for each in (vanilla_gpt_finetune_config, qwen3_8b_sft_config)}
    assert signature(prepare_).parameters["seed"].default == seed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prepare", "--sft", "exp.yaml", "--seq-length", "9"), "--seq-length is said by the experiment exp.yaml"),
        (("prepare", "--sft", "rows", "--text-lines", "--seq-length", "9"), "--text-lines is for text, and rows are named"),
        (("prepare", "--sft", "rows"), "--sft needs --seq-length"),
        (("prepare", "--sft", "a", "b"), "a b: --sft takes one file, folder or name of rows"),
        (("prepare", "a.txt", "--output-prefix", "a", "--packed"), "--packed is for rows: give --sft too"),
        (("prepare", "a.txt"), "--output-prefix is missing"),
        (("prepare", "--sft", "exp.yaml", "--by-length"), "--by-length is for files of packs"),
        (("prepare", "--sft", "tiny.yaml"), "tiny.yaml trains on documents"),
        (("show", "a", "--split", "test"), "--split is for rows"),
        (
            ("show", "rows/training.jsonl"),
            "rows/training.jsonl is no prefix; of rows, name an experiment, or give --seq-length",
        ),
        (("show", "a", "b"), "a b: name one dataset by its prefix"),
    ],
)
@pytest.mark.usefixtures("rows")
def test_options_that_would_do_nothing_are_refused(primus, words, said):
    refused = primus("data", *words)
    assert refused.code == 2
    assert said in refused.err
