"""Files that cannot be read as they stand, and what they say."""

import pytest

from primus.core.experiment import load_experiment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "exp.yaml: the file is empty"),
        ("# only a comment\n", "exp.yaml: the file is empty"),
        ("- a\n- b\n", "exp.yaml:1: the file holds a list instead of a map"),
        ("hello\n", "exp.yaml:1: the file holds the single value 'hello' instead of a map"),
        (
            "a: 1\nb: [1,\nc: 2\n",
            "exp.yaml:4:1: YAML syntax error: did not find expected ',' or ']' (while parsing a flow sequence",
        ),
        ("a: 1\n\tb: 2\n", "exp.yaml:2:1: YAML syntax error"),
        ("a: 1\n---\nb: 2\n", "exp.yaml:2:1: YAML syntax error"),
        ("a: *nowhere\n", "exp.yaml:1:4: YAML syntax error"),
    ],
)
def test_a_file_that_is_no_map_is_refused_with_its_place(reader, problems_of, text, message):
    assert message in problems_of(reader.load, text)


def test_a_missing_file_is_named(reader, problems_of, tmp_path):
    assert problems_of(load_experiment, tmp_path / "no.yaml", (), {}) == f"{tmp_path}/no.yaml: there is no such file"


def test_binary_content_is_refused(reader, problems_of, tmp_path):
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00a: 1")
    (tmp_path / "folder.yaml").mkdir()
    assert "folder.yaml: is a folder; give the YAML file itself" in problems_of(
        load_experiment, tmp_path / "folder.yaml", (), {}
    )
    assert "bin.yaml: cannot be read" in problems_of(load_experiment, tmp_path / "bin.yaml", (), {})


def test_a_key_set_twice_is_an_error_that_names_both_lines(reader, problems_of):
    text = problems_of(reader.overrides, "lr: 1\nseed: 2\nlr: 3")
    assert text == "exp.yaml:9: lr is set twice in one map; line 7 sets it too. Keep one."


def test_anchors_and_merge_keys_work(reader):
    params = reader.overrides("train_iters: &n 7\nexit_interval: *n\nx: &base {seed: 3, lr: 1}\ny: {<<: *base, lr: 2}")
    assert (params["exit_interval"].value, params["y"].value) == (7, {"seed": 3, "lr": 2})


def test_an_alias_to_its_own_map_ends_as_an_error(reader, problems_of):
    assert "refers to the very map" in problems_of(reader.overrides, "x: &x\n  y: *x")


def test_a_foreign_tag_is_refused_and_a_plain_one_obeyed(reader, problems_of):
    assert reader.overrides("wandb_exp_name: !!str 5")["wandb_exp_name"].value == "5"
    assert "exp.yaml:7: the YAML tag tag:yaml.org,2002:python/name:os" in problems_of(reader.overrides, "x: !!python/name:os 1")
    assert "does not fit its YAML tag" in problems_of(reader.overrides, "x: !!int abc")


def test_a_byte_order_mark_is_no_part_of_the_first_key(reader):
    assert reader.load("\ufeffexp_name: a\nframework: megatron\n").exp_name.value == "a"
