"""`primus train`: what it starts, and how it refuses."""

import os
from pathlib import Path

import pytest

from primus.engine.config import serialize


def test_pretrain_writes_the_container_and_becomes_the_worker(primus, became, folder):
    outcome = primus(
        "train", "pretrain", "--config", "tiny.yaml", "--lr", "1e-3", "seed=7", "--micro-batch-size=2", "--profile"
    )
    assert (outcome.code, outcome.out) == (0, "")
    run = folder / "out" / "amd" / "ann" / "tiny"
    ((command, _),) = became
    assert command[1:] == ["-m", "primus.engine.worker", str(run / "config.yaml")]
    config = serialize.load(run / "config.yaml")
    assert (config.optimizer.lr, config.rng.seed, config.train.micro_batch_size) == (1e-3, 7, 2)
    assert config.profiling.profile is True
    assert config.run.folder == str(run)


def test_the_container_notes_where_its_values_were_set(primus, became, folder):
    primus("train", "pretrain", "--config", "tiny.yaml", "--lr", "1e-3")
    text = (folder / "out/amd/ann/tiny/config.yaml").read_text()
    assert any("lr: 0.001" in line and "# cli" in line for line in text.splitlines())
    assert any("train_iters: 6" in line and "tiny.yaml:14" in line for line in text.splitlines())


def test_words_and_launch_options_may_be_mixed(primus, became):
    primus("train", "pretrain", "--seed", "7", "--nproc-per-node", "2", "--config", "tiny.yaml", "lr=1e-3")
    ((command, env),) = became
    assert command[2] == "primus.engine.elastic"
    assert command[-2:] == ["--nproc-per-node", "2"]
    assert env["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))


def test_notices_are_one_line_each_on_stderr(primus, became):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "bert_binary_head=false", "save_interval=3")
    lines = outcome.err.splitlines()
    assert lines
    assert all(line.startswith("note: ") for line in lines)
    assert any(line.startswith("note: bert_binary_head false (cli) has no effect") for line in lines)


def test_every_mistake_is_in_one_block_and_nothing_is_written(primus, became, folder):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "micro_batchsize=2", "--lr", "fast", "fp8=hybrid")
    assert (outcome.code, became) == (2, [])
    lines = outcome.err.splitlines()
    assert lines[0] == "error: 3 problems"
    assert any("micro_batchsize 2 (cli) is not a known key. Did you mean micro_batch_size" in line for line in lines)
    assert any("lr fast (cli) must be a number" in line for line in lines)
    assert any("fp8 is not implemented yet" in line for line in lines)
    assert "Traceback" not in outcome.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize("words", [["use_turbo_parallel_linear=false"], ["--use_turbo_grouped_mlp", "true"]])
def test_a_removed_key_names_its_successor(primus, became, words):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", *words)
    assert (outcome.code, became) == (2, [])
    assert "use_turbo_gemm" in outcome.err or "use_turbo_grouped_gemm" in outcome.err


def test_of_two_words_for_one_key_the_later_wins_and_that_is_said(primus, became):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "seed=5", "--seed", "6")
    assert "note: seed 6 (cli) is the later of two words; seed 5 before it is not used." in outcome.err
    assert "later" not in primus("train", "pretrain", "--config", "tiny.yaml", "seed=5", "seed=5").err


def test_two_experiments_are_refused(primus, became):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "--config", "other.yaml")
    assert (outcome.code, became) == (2, [])
    assert outcome.err.startswith("error: --config is given more than once (tiny.yaml and other.yaml)")


@pytest.mark.parametrize("words", [["--nproc", "2"], ["nproc=2"], ["--nproc=2"], ["nproc_per_node=2"]])
def test_a_launch_option_in_other_words_is_named(primus, became, words):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", *words)
    assert (outcome.code, became) == (2, [])
    assert "is no option of this command and no key. Did you mean --nproc-per-node?" in outcome.err


def test_a_misspelt_launch_option_is_not_taken_for_a_key(primus, became):
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "--nproc-per-nod", "2")
    assert outcome.code == 2
    assert outcome.err == "error: --nproc-per-nod is no option of this command and no key. Did you mean --nproc-per-node?\n"


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("train", "bogus"),
        ("train", "pretrain"),
        ("train", "pretrain", "--config", "tiny.yaml", "--nproc-per-node", "two"),
        ("config", "validate", "--bogus", "tiny.yaml"),
    ],
)
def test_a_mistake_in_the_command_itself_is_exit_code_2(primus, words):
    outcome = primus(*words)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_a_world_that_does_not_fit_is_refused(primus, became):
    words = ("--nproc-per-node", "3", "tensor_model_parallel_size=2")
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", *words)
    assert (outcome.code, became) == (2, [])
    assert "3 processes" in outcome.err


def test_posttrain_runs_the_only_module_whatever_its_role(primus, became):
    assert primus("train", "posttrain", "--config", "tiny.yaml", "bert_binary_head=false").code == 0
    assert len(became) == 1


def test_posttrain_prefers_the_post_trainer(primus, became):
    Path("two.yaml").write_text(
        Path("tiny.yaml").read_text()
        + "  post_trainer:\n    framework: megatron_bridge\n    config: sft_trainer.yaml\n    model: qwen3_8b.yaml\n"
        + "    overrides: {peft: lorra}\n"
    )
    assert "peft lorra" in primus("train", "posttrain", "--config", "two.yaml").err
    assert primus("train", "pretrain", "--config", "two.yaml", "bert_binary_head=false").code == 0


def test_under_torchrun_each_rank_becomes_its_worker_and_rank_0_writes(primus, became, folder, monkeypatch):
    joined = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", "bert_binary_head=false")
    assert (outcome.code, outcome.err) == (0, "")
    ((command, env),) = became
    assert serialize.load(Path(command[-1])).train.global_batch_size == 8
    assert not (folder / "out").exists()
    assert env["RANK"] == "1"


@pytest.mark.parametrize("word", ["lr=abc", "load=nowhere"])
def test_of_several_ranks_all_are_refused_and_one_tells_the_mistake(primus, became, monkeypatch, word):
    joined = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    silent = primus("train", "pretrain", "--config", "tiny.yaml", word, "exit_on_missing_checkpoint=true")
    monkeypatch.setenv("LOCAL_RANK", "0")
    speaking = primus("train", "pretrain", "--config", "tiny.yaml", word, "exit_on_missing_checkpoint=true")
    assert (silent.code, silent.err) == (2, "")
    assert speaking.code == 2
    assert word.rpartition("=")[2] in speaking.err
    assert became == []


def test_dry_run_prints_the_plan_and_writes_nothing(primus, became, folder):
    words = ("--dry-run", "--nproc-per-node", "4", "tensor_model_parallel_size=2")
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", *words)
    assert (outcome.code, became) == (0, [])
    assert "tp 2 x cp 1 x pp 1 x dp 2 = 4 ranks" in outcome.out
    assert "8 samples = 1 x data 2 x 4 microbatches" in outcome.out
    assert "6 iterations, 48 samples" in outcome.out
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yaml"]


def test_data_and_tokenizer_are_looked_at_before_a_start(primus, became, folder):
    (folder / "half.bin").write_bytes(b"")
    words = (
        "mock_data=false",
        "data_path=half",
        "tokenizer_type=HuggingFaceTokenizer",
        "tokenizer_model=./nowhere",
        "split='1,0,0'",
    )
    outcome = primus("train", "pretrain", "--config", "tiny.yaml", *words)
    assert (outcome.code, became) == (2, [])
    assert "nowhere" in outcome.err
    assert "half.idx" in outcome.err
    assert not (folder / "out").exists()
