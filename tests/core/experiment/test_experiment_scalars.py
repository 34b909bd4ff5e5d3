"""Values as people write them, and substitutions in them."""

import math

import pytest

from primus.core.experiment.scalars import read_scalar, read_word


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.0e-5", 1e-5),
        (".5", 0.5),
        ("-3.", -3.0),
        ("12", 12),
        ("-7", -7),
        ("1_000", 1000),
        ("0x10", 16),
        ("true", True),
        ("TRUE", True),
        ("fAlSe", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("0", 0),
        ("99,1,0", "99,1,0"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("007", "007"),
        ("1e", "1e"),
        ("None", "None"),
        ("nan", "nan"),
    ],
)
def test_a_scalar_is_what_its_writer_means(text, value):
    read = read_scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_infinity_and_nan_need_yamls_dot():
    assert read_scalar("-.inf") == -math.inf
    assert math.isnan(read_scalar(".nan"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1,2]", [1, 2]),
        ("{a: 1e-3}", {"a": 1e-3}),
        ("'1e-3'", "1e-3"),
        ('"true"', "true"),
        ("a: b", "a: b"),
        ("C#", "C#"),
        ("@x", "@x"),
    ],
)
def test_a_word_of_the_command_line_may_be_quoted_or_in_brackets(text, value):
    assert read_word(text) == value


def test_a_plain_value_in_a_file_follows_the_same_rules(reader):
    params = reader.overrides("lr: 1e-3\nsplit: 99,1,0\nwandb_exp_name: 2024-01-01\nprofile: tRue")
    assert [params[key].value for key in ("lr", "split", "wandb_exp_name", "profile")] == [1e-3, "99,1,0", "2024-01-01", True]
    assert reader.overrides("lr: 1.0e-3")["lr"] == params["lr"]


def test_a_substitution_takes_its_type_from_its_text(reader):
    lines = "profile: ${T_PROF:false}\nlr: ${T_LR:1.0e-4}\ntrain_iters: ${T_N:2}\nseed: ${T_SEED:1}\nload: ${T_LOAD:null}"
    params = reader.overrides(lines, env={"T_SEED": "0"})
    values = [params[key].value for key in ("profile", "lr", "train_iters", "seed", "load")]
    assert values == [False, 1e-4, 2, 0, None]
    assert [type(value) for value in values] == [bool, float, int, int, type(None)]
    assert reader.overrides(lines, env={"T_PROF": "TRUE"})["profile"].value is True


def test_a_substituted_value_names_its_variable_only_if_it_came_from_one(reader):
    params = reader.overrides("lr: ${LR:1}\nseed: '${SEED}'\nsave: ${HOME}/runs", env={"SEED": "3", "HOME": "/home/ann"})
    assert params["lr"].source == "exp.yaml:7"
    assert (params["seed"].value, params["seed"].source) == (3, "env SEED")
    assert (params["save"].value, params["save"].source) == ("/home/ann/runs", "exp.yaml:9")


def test_a_default_may_hold_a_substitution(reader):
    lines = "save: ${A:${B:/tmp}/runs}\nseed: ${C:${D:5}}"
    assert reader.overrides(lines)["save"].value == "/tmp/runs"
    params = reader.overrides(lines, env={"B": "/data", "D": "6"})
    assert (params["save"].value, params["seed"].value, params["seed"].source) == ("/data/runs", 6, "env D")


def test_every_unset_variable_is_reported_with_its_line(reader, problems_of):
    text = problems_of(reader.overrides, "save: ${NOWHERE}/x\nseed: ${NOTHING}\nload: ${OPEN\nlr: ${1x:2}")
    assert "exp.yaml:7: the environment variable NOWHERE is not set; export it, or write ${NOWHERE:default}" in text
    assert "exp.yaml:8: the environment variable NOTHING is not set" in text
    assert "exp.yaml:9: '${OPEN' opens a substitution" in text
    assert "exp.yaml:10: ${1x:2} is not a substitution" in text
