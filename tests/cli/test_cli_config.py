"""`primus config`: the verbs that only look."""

import json
from pathlib import Path

import pytest

from primus.backends.megatron.keys import KEYS


def test_show_as_json_has_value_and_source_of_every_parameter(primus, monkeypatch):
    monkeypatch.setenv("T_SEED", "3")
    text = Path("tiny.yaml").read_text() + "      seed: ${T_SEED}\n      profile: ${T_PROF:false}\n"
    Path("tiny.yaml").write_text(text)
    outcome = primus("config", "show", "tiny.yaml", "--lr", "1e-3", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    module = json.loads(outcome.out)["modules"]["pre_trainer"]
    assert module["framework"] == "megatron"
    params = module["params"]
    assert params["lr"] == {"value": 1e-3, "source": "cli"}
    assert params["seed"] == {"value": 3, "source": "env T_SEED"}
    assert params["profile"] == {"value": False, "source": "tiny.yaml:24"}
    assert params["train_iters"] == {"value": 6, "source": "tiny.yaml:14"}
    assert params["adam_beta2"]["source"].startswith("primus/configs/modules/megatron/")
    assert {name for name, key in KEYS.items() if key.section} - set(params) <= {
        "use_turbo_parallel_linear",
        "use_turbo_grouped_mlp",
    }


def test_one_number_written_in_two_ways_shows_alike(primus):
    texts = [primus("config", "show", "tiny.yaml", f"lr={text}", "--json").out for text in ("1e-3", "1.0e-3", "'1e-3'")]
    assert texts[0] == texts[1] == texts[2]


def test_show_as_text_says_what_a_value_beat_in_other_layers(primus):
    """Cases A7: one key in the model preset, the module preset and on the command line."""
    Path("own.yaml").write_text("extends: primus/configs/models/megatron/language_model.yaml\nseq_length: 77\n")
    Path("a7.yaml").write_text("framework: megatron\nmodules: {pre_trainer: {model: own.yaml, overrides: {seed: 2}}}\n")

    def line(name, *words):
        lines = primus("config", "show", "a7.yaml", *words).out.splitlines()
        return next(line for line in lines if line.startswith(f"{name} "))

    preset = line("seq_length")
    assert " 1024  # primus/configs/modules/megatron/pre_trainer.yaml:" in preset
    assert ", instead of 77 (own.yaml:2)" in preset
    won = line("seq_length", "seq_length=64")
    assert " 64  # cli, instead of 1024 (primus/configs/modules/megatron/pre_trainer.yaml:" in won
    assert "instead of 77 (own.yaml:2)" in won
    assert " 2  # a7.yaml:2, instead of 1234 (primus/configs/modules/megatron/trainer_base.yaml:" in line("seed")


def test_show_still_shows_what_is_wrong_and_leaves_with_2(primus):
    outcome = primus("config", "show", "tiny.yaml", "lr=fast", "sed=1", "num_experts=8", "--json")
    assert outcome.code == 2
    assert json.loads(outcome.out)["modules"]["pre_trainer"]["params"]["lr"]["value"] == "fast"
    assert outcome.err.splitlines()[0] == "error: 2 problems"


def test_validate_judges_every_file(primus):
    Path("wrong.yaml").write_text(Path("tiny.yaml").read_text() + "      lr: abc\n      sed: 1\n")
    outcome = primus("config", "validate", "tiny.yaml", "wrong.yaml", "gone.yaml")
    assert outcome.code == 2
    assert outcome.out.splitlines()[0].startswith("tiny.yaml: ok (pre_trainer: ")
    assert outcome.out.splitlines()[1:] == ["wrong.yaml: wrong", "gone.yaml: wrong"]
    assert "lr abc (wrong.yaml:23) must be a number" in outcome.err
    assert "sed 1 (wrong.yaml:24) is not a known key" in outcome.err
    assert "gone.yaml: there is no such file" in outcome.err


def test_validate_says_which_of_several_files_a_note_is_about(primus):
    Path("idle.yaml").write_text(Path("tiny.yaml").read_text() + "      sgd_momentum: 0.5\n")
    note = "sgd_momentum 0.5 (idle.yaml:23) has no effect: optimizer adam"
    assert primus("config", "validate", "idle.yaml").err.startswith(f"note: {note}")
    assert primus("config", "validate", "tiny.yaml", "idle.yaml").err.startswith(f"note: idle.yaml: {note}")


def test_validate_looks_at_values_and_not_at_files(primus):
    text = Path("tiny.yaml").read_text().replace("mock_data: true", "data_path: nowhere")
    Path("text.yaml").write_text(text)
    assert primus("config", "validate", "text.yaml").code == 0
    assert "`train --dry-run`" in " ".join(primus("config", "validate", "--help").out.split())


def test_validate_refuses_a_world_size_that_is_no_number(primus, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "abc")
    outcome = primus("config", "validate", "tiny.yaml")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: WORLD_SIZE is 'abc'")


def test_validate_takes_the_fewest_ranks_that_fit(primus):
    Path("two.yaml").write_text(Path("tiny.yaml").read_text() + "      tensor_model_parallel_size: 2\n")
    assert "2 ranks" in primus("config", "validate", "two.yaml").out
    assert primus("config", "validate", "--world-size", "3", "two.yaml").code == 2
    assert "4 ranks" in primus("config", "validate", "--world-size", "4", "two.yaml").out


def test_explain_tells_meaning_type_defaults_target_and_status(primus):
    out = primus("config", "explain", "lr_decay_style").out
    assert out.splitlines()[0] == "lr_decay_style"
    assert "choices  constant, linear, cosine, inverse-square-root, WSD" in out
    assert "(primus/configs/modules/megatron/trainer_base.yaml:" in out
    assert "changes  scheduler.lr_decay_style" in out
    assert "status   live" in out
    assert "range    at least 1\n" in primus("config", "explain", "--", "--micro-batch-size").out
    assert "status   pending: " in primus("config", "explain", "hc_mult").out


def test_explain_an_unknown_key_proposes_the_nearest(primus):
    outcome = primus("config", "explain", "micro_batchsize")
    assert outcome.code == 2
    assert "Did you mean micro_batch_size" in outcome.err


def test_explain_knows_the_words_of_the_file(primus):
    assert "work_group stands at the top of an experiment file" in primus("config", "explain", "work_group").err
    assert "Did you mean lr?" in primus("config", "explain", "learning_rate").err


@pytest.mark.parametrize("words", [("coverage",), ("explain", "lr")])
def test_an_unknown_framework_is_refused(primus, words):
    outcome = primus("config", *words, "--framework", "foo")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "error: framework foo is not known; there are megatron, megatron_bridge\n"


def test_diff_lists_what_differs_with_both_sources(primus):
    Path("b.yaml").write_text(Path("tiny.yaml").read_text().replace("train_iters: 6", "train_iters: 7"))
    assert primus("config", "diff", "tiny.yaml", "b.yaml").out.splitlines() == [
        "pre_trainer.train_iters",
        "  - 6  (tiny.yaml:14)",
        "  + 7  (b.yaml:14)",
    ]
    assert primus("config", "diff", "tiny.yaml", "tiny.yaml").out == "no difference\n"


def test_coverage_counts_every_key(primus):
    counted = json.loads(primus("config", "coverage", "--json").out)
    assert counted["live"] + counted["pending"] + counted["inert"] == len(counted["keys"]) == len(KEYS)
    assert counted["keys"]["lr"] == {"status": "live", "reason": ""}
    assert {row["status"] for row in counted["keys"].values()} <= {"live", "pending", "inert"}
    assert all(row["reason"] for row in counted["keys"].values() if row["status"] != "live")
    assert "keys:" in primus("config", "coverage").out


def test_the_key_page_in_the_repository_is_the_generated_one(primus):
    page = Path(__file__).parents[2] / "docs" / "keys.md"
    out = primus("config", "docs").out
    assert page.read_text() == out, "run: primus config docs --out docs/keys.md"
    assert all(f"| `{name}` |" in out for name in KEYS)


@pytest.mark.parametrize("verb", ["show", "validate"])
def test_two_modules_are_both_looked_at(primus, verb):
    text = Path("tiny.yaml").read_text().splitlines(keepends=True)
    Path("two.yaml").write_text("".join(text) + "  other:\n" + "".join(text[6:]))
    out = primus("config", verb, "two.yaml").out
    assert "pre_trainer" in out
    assert "other" in out
