"""Arguments before a recipe sees them: layers of dictionaries, and the words for data in one form."""

from argparse import Namespace
from types import SimpleNamespace

import pytest

from primus.backends.megatron_bridge.argument_builder import MegatronBridgeArgBuilder
from primus.backends.megatron_bridge.dataset_arguments import normalise_dataset_arguments
from primus.errors import ConfigError


def test_maps_combine_and_everything_else_replaces():
    builder = MegatronBridgeArgBuilder()
    builder.update({"dataset": {"dataset_name": "squad", "seed": 1}, "peft_target_modules": ["a", "b"], "train_iters": 5})
    builder.update(Namespace(dataset=SimpleNamespace(seed=2), peft_target_modules=["c"], new=1))
    builder.update({"train_iters": None})
    assert builder.to_dict() == {
        "dataset": {"dataset_name": "squad", "seed": 2},
        "peft_target_modules": ["c"],
        "train_iters": None,
        "new": 1,
    }
    assert builder.finalize().dataset.seed == builder.to_namespace().dataset.seed == 2


def test_what_a_builder_gives_away_is_a_copy():
    given = {"dataset": {"names": ["a"]}}
    builder = MegatronBridgeArgBuilder().update(given)
    given["dataset"]["names"].append("b")
    builder.to_dict()["dataset"]["names"].append("c")
    assert builder.to_dict() == {"dataset": {"names": ["a"]}}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"data_paths": " none "}, {"data_paths": None}),
        ({"data_paths": "a b", "mock": None}, {"data_paths": ["a b"], "mock": False}),
        ({"train_data_path": "['a', '', 'b']"}, {"train_data_path": ["a", "b"], "mock": False}),
        ({"valid_data_path": ("a", 1)}, {"valid_data_path": ["a", "1"], "mock": False}),
        ({"test_data_path": []}, {"test_data_path": None}),
        ({"data_args_path": " x "}, {"data_args_path": "x", "mock": False}),
        ({"mock": "True"}, {"mock": True}),
        ({"mock_data": "true"}, {"mock": True}),
        ({"mock": False, "mock_data": True}, {"mock": False}),
        ({"lr": 1}, {"lr": 1}),
    ],
)
def test_names_of_data_have_one_form(given, found):
    normalise_dataset_arguments(given)
    assert given == found


@pytest.mark.parametrize("name", ["mock", "mock_data"])
def test_made_up_data_are_true_or_false(name):
    with pytest.raises(ConfigError, match=rf"{name} 'perhaps' must be true or false"):
        normalise_dataset_arguments({name: "perhaps"})


@pytest.mark.parametrize(
    ("name", "value", "right"), [("data_paths", {"a": 1}, "a list of prefixes"), ("data_args_path", ["a"], "a file")]
)
def test_names_of_data_have_their_type(name, value, right):
    with pytest.raises(ConfigError, match=rf"{name} .* must be {right}"):
        normalise_dataset_arguments({name: value})
