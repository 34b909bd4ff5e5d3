"""The words behind a command."""

import pytest

from primus.core.experiment.value import plain
from primus.core.experiment.words import read_words


def read(*words):
    problems = []
    return plain(read_words(words, problems)), problems


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["lr=1e-3"], {"lr": 1e-3}),
        (["--lr", "1e-3"], {"lr": 1e-3}),
        (["--lr=1e-3"], {"lr": 1e-3}),
        (["--micro-batch-size", "4"], {"micro_batch_size": 4}),
        (["--profile"], {"profile": True}),
        (["--profile", "--seed", "3"], {"profile": True, "seed": 3}),
        (["--profile", "seed=3"], {"profile": True, "seed": 3}),
        (["--min_lr", "-1"], {"min_lr": -1}),
        (["--save", "a=b"], {"save": True, "a": "b"}),
        (["--save=a=b"], {"save": "a=b"}),
        (["ranks=[1,2]"], {"ranks": [1, 2]}),
        (["--split", "99,1,0"], {"split": "99,1,0"}),
        (["load="], {"load": None}),
        (["a.b=1", "--a.c", "2", "a.d.e=3"], {"a": {"b": 1, "c": 2, "d": {"e": 3}}}),
        (["lr=1", "lr=2"], {"lr": 2}),
        (["data_path='my data'"], {"data_path": "my data"}),
        (["--data_path", "/d/x=1"], {"data_path": "/d/x=1"}),
    ],
)
def test_each_form_gives_key_and_value(words, values):
    assert read(*words) == (values, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed"], "'seed' is neither KEY=VALUE nor --KEY VALUE (cli)"),
        (["--"], "'--' is neither KEY=VALUE nor --KEY VALUE (cli)"),
        (["a..b=1"], "'a..b' is not a key (cli)"),
        (["x=[1"], "x: [1 (cli) is not a YAML value"),
    ],
)
def test_a_word_of_another_form_is_a_problem(words, message):
    (problem,) = read(*words)[1]
    assert problem.startswith(message)
