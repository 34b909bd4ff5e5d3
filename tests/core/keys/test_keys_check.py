"""Parameters against rows: what is reported, in which words, and what is left."""

import pytest

from primus.core.experiment import Value
from primus.core.keys import Key, check_params, check_values, show_value

ROWS = (
    Key("lr", "float?", (), "live", "optimizer.lr", "Rate.", minimum=0, aka=("learning_rate",)),
    Key("lr_warmup_iters", "int", (), "live", "scheduler.lr_warmup_steps", "Warm-up."),
    Key("micro_batch_size", "int", (), "live", "train.micro_batch_size", "Microbatch.", minimum=1, maximum=1024),
    Key("beta", "float", (), "live", "optimizer.beta", "Beta.", above=0, below=1),
    Key("style", "str?", ("cosine", "linear"), "live", "scheduler.style", "Shape."),
    Key("ranks", "list[int]", (0, 1, 2), "live", "profiling.ranks", "Ranks."),
    Key("num_experts", "int?", (), "pending", None, "Experts.", "Mixture of experts is not built yet"),
    Key("in_background", "bool?", (), "pending", None, "Later.", "Saving in the background is not built yet"),
    Key("bert_head", "bool", (), "inert", None, "Head.", "only BERT reads it"),
    Key("old_name", "bool", (), "removed", None, "Old.", "old_name has been removed; please use lr instead"),
)
KEYS = {row.name: row for row in ROWS}
DEFAULTS = {
    "lr": Value(2e-5, "primus/configs/x.yaml:1"),
    "lr_warmup_iters": Value(40, "primus/configs/x.yaml:2"),
    "micro_batch_size": Value(2, "primus/configs/x.yaml:3"),
    "beta": Value(0.5, "primus/configs/x.yaml:8"),
    "style": Value("cosine", "primus/configs/x.yaml:4"),
    "ranks": Value([0], "primus/configs/x.yaml:5"),
    "num_experts": Value(None, "primus/configs/x.yaml:6"),
    "in_background": Value(None, "primus/configs/x.yaml:10"),
    "bert_head": Value(True, "primus/configs/x.yaml:7"),
}


def check(**given):
    params = {**DEFAULTS, **{name: Value(value, "exp.yaml:9") for name, value in given.items()}}
    return check_params(KEYS, params, DEFAULTS)


def test_defaults_pass_without_a_word():
    typed, problems, warnings = check()
    assert ({name: value.value for name, value in typed.items()}, problems, warnings) == (
        {name: value.value for name, value in DEFAULTS.items()},
        [],
        [],
    )


def test_the_name_of_another_program_is_translated():
    _, problems, _ = check(learning_rate=3)
    assert problems == ["learning_rate 3 (exp.yaml:9) is not a known key. Did you mean lr?"]


def test_a_word_of_the_file_is_sent_to_its_place():
    (problem,) = check(exp_name="a")[1]
    assert (
        problem
        == "exp_name a (exp.yaml:9) is not a known key. exp_name stands at the top of an experiment file, beside modules."
    )


def test_a_typed_value_keeps_its_source():
    assert check(lr="1e-3")[0]["lr"] == Value(1e-3, "exp.yaml:9")


def test_unknown_keys_are_reported_together_with_their_neighbours():
    _, problems, _ = check(micro_batchsize=2, lr_warmup_iter=3, zzz=1)
    assert problems == [
        "micro_batchsize 2 (exp.yaml:9) is not a known key. Did you mean micro_batch_size?",
        "lr_warmup_iter 3 (exp.yaml:9) is not a known key. Did you mean lr_warmup_iters?",
        "zzz 1 (exp.yaml:9) is not a known key. `primus config docs` lists all keys.",
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"lr": "fast"}, "lr fast (exp.yaml:9) must be a number or null."),
        ({"lr": -1}, "lr -1 (exp.yaml:9) must be at least 0."),
        ({"micro_batch_size": True}, "micro_batch_size true (exp.yaml:9) must be an integer."),
        ({"micro_batch_size": "true"}, 'micro_batch_size "true" (exp.yaml:9) must be an integer.'),
        (
            {"micro_batch_size": 2**63},
            "micro_batch_size 9223372036854775808 (exp.yaml:9) must be an integer of at most 63 bits.",
        ),
        ({"micro_batch_size": 0}, "micro_batch_size 0 (exp.yaml:9) must be at least 1 and at most 1024."),
        ({"beta": 1}, "beta 1 (exp.yaml:9) must be above 0 and below 1."),
        ({"beta": 0}, "beta 0 (exp.yaml:9) must be above 0 and below 1."),
        ({"style": "cosin"}, "style cosin (exp.yaml:9) must be one of cosine, linear, null. Did you mean cosine?"),
        ({"ranks": [0, 9]}, "ranks [0, 9] (exp.yaml:9) must be one of 0, 1, 2."),
        ({"bert_head": 1}, "bert_head 1 (exp.yaml:9) must be true or false."),
        (
            {"num_experts": 8},
            "num_experts is not implemented yet: it is 8 (exp.yaml:9); only its default null (primus/configs/x.yaml:6) "
            "can be used. Mixture of experts is not built yet.",
        ),
        ({"old_name": False}, "old_name has been removed; please use lr instead (old_name false (exp.yaml:9))"),
    ],
)
def test_a_wrong_value_is_one_problem_and_leaves_the_typed_values(given, problem):
    typed, problems, warnings = check(**given)
    assert (problems, warnings) == ([problem], [])
    assert next(iter(given)) not in typed


def test_an_inert_key_warns_only_when_it_is_changed():
    assert check(bert_head=True)[2] == []
    typed, problems, warnings = check(bert_head=False)
    assert (problems, warnings) == ([], ["bert_head false (exp.yaml:9) has no effect: only BERT reads it."])
    assert typed["bert_head"].value is False


def test_a_pending_key_may_repeat_its_default():
    assert check(num_experts="None")[1] == []


def test_a_pending_switch_that_the_presets_leave_open_may_be_off():
    assert check(in_background=False)[1:] == ([], [])
    assert "in_background is not implemented yet" in check(in_background=True)[1][0]


def test_a_preset_that_asks_for_what_is_not_built_is_refused_and_one_that_changes_an_inert_key_is_not():
    family = {
        "num_experts": Value(8, "primus/configs/family.yaml:1", DEFAULTS["num_experts"]),
        "bert_head": Value(False, "primus/configs/family.yaml:2", DEFAULTS["bert_head"]),
    }
    presets = {**DEFAULTS, **family}
    typed, problems, warnings = check_params(KEYS, presets, presets)
    (problem,) = problems
    assert problem.startswith(
        "num_experts is not implemented yet: it is 8 (primus/configs/family.yaml:1); only its default null"
    )
    assert "num_experts" not in typed
    assert warnings == []


def test_a_key_without_any_value_names_the_presets_to_extend():
    params = {name: value for name, value in DEFAULTS.items() if name != "lr"}
    (problem,) = check_params(KEYS, params, DEFAULTS)[1]
    assert problem.startswith("the presets give no value for lr: a module preset of your own should extend")


def test_values_are_checked_without_regard_to_status():
    checked = check_values(KEYS, {"num_experts": Value(8, "cli"), "lr": Value("x", "cli")})
    assert checked.typed["num_experts"].value == 8
    assert checked.problems == ["lr x (cli) must be a number or null."]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-05, "1e-5"),
        (2.5e10, "25000000000.0"),
        ([1, "a"], "[1, a]"),
        ("", '""'),
        ("7", '"7"'),
    ],
)
def test_a_value_is_shown_as_yaml(value, text):
    assert show_value(value) == text
