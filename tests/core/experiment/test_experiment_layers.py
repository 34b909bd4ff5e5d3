"""Which layer wins, what it came from, and how files extend each other."""

from primus.core.experiment import Value, is_preset_source


def test_command_line_beats_experiment_beats_module_preset_beats_model_preset(reader):
    reader.write(
        "model.yaml", "extends: primus/configs/models/megatron/language_model.yaml\nlr: 4\nseed: 4\nmin_lr: 4\nhidden_size: 4\n"
    )
    reader.write("module.yaml", "extends: primus/configs/modules/megatron/pre_trainer.yaml\nlr: 3\nseed: 3\nmin_lr: 3\n")
    module = "framework: megatron\n    config: module.yaml\n    model: model.yaml\n    overrides: {lr: 2, seed: 2}\n"
    text = f"modules:\n  pre_trainer:\n    {module}"
    params = reader.load(text, ["lr=1"]).modules["pre_trainer"].params
    assert [params[key].value for key in ("lr", "seed", "min_lr", "hidden_size")] == [1, 2, 3, 4]
    assert [params[key].source for key in ("lr", "seed", "min_lr", "hidden_size")] == [
        "cli",
        "exp.yaml:6",
        "module.yaml:4",
        "model.yaml:5",
    ]


def test_a_replaced_value_is_not_lost(reader):
    chain = []
    value = reader.overrides("seq_length: 64", ["seq_length=128"])["seq_length"]
    while value is not None:
        chain.append(value.value)
        value = value.over
    assert chain == [128, 64, 1024, 4096]


def test_defaults_are_what_the_shipped_presets_say(reader):
    reader.write("own.yaml", "extends: primus/configs/models/megatron/llama2_7B.yaml\nnum_layers: 3\n")
    text = "framework: megatron\nmodules:\n  pre_trainer: {model: own.yaml, overrides: {lr: 7, made_up: 1}}\n"
    module = reader.load(text).modules["pre_trainer"]
    assert module.params["num_layers"].value == 3
    assert module.defaults["num_layers"].value == 32
    assert is_preset_source(module.defaults["lr"].source)
    assert "made_up" not in module.defaults


def test_maps_merge_deep_and_lists_replace(reader):
    reader.write(
        "base.yaml",
        "framework: megatron\nmodules:\n  pre_trainer:\n    overrides:\n      a: {x: 1, y: {z: 2}}\n      b: [1, 2]\n",
    )
    text = "extends: base.yaml\nmodules:\n  pre_trainer:\n    overrides:\n      a: {y: {w: 3}}\n      b: [3]\n"
    params = reader.load(text, ["a.y.z=5"]).modules["pre_trainer"].params
    assert params["a"].value == {"x": 1, "y": {"z": 5, "w": 3}}
    assert params["b"].value == [3]


def test_extends_is_relative_to_its_file_and_the_file_itself_wins(reader):
    reader.write("a/one.yaml", "extends: ../b/two.yaml\nexp_name: one\n")
    reader.write("b/two.yaml", "exp_name: two\nwork_group: two\nuser_name: two\n")
    reader.write("b/three.yaml", "work_group: three\n")
    experiment = reader.load("extends: [a/one.yaml, b/three.yaml]\nuser_name: ann\nframework: megatron\n")
    assert experiment.exp_name == Value("one", "a/one.yaml:2")
    assert experiment.work_group == Value("three", "b/three.yaml:1")
    assert experiment.user_name.value == "ann"


def test_a_file_may_be_extended_along_two_ways(reader):
    reader.write("root.yaml", "framework: megatron\n")
    reader.write("left.yaml", "extends: root.yaml\n")
    reader.write("right.yaml", "extends: root.yaml\nexp_name: right\n")
    assert reader.load("extends: [left.yaml, right.yaml]\n").exp_name.value == "right"


def test_a_cycle_is_printed(reader, problems_of):
    reader.write("a.yaml", "extends: b.yaml\n")
    reader.write("b.yaml", "extends: a.yaml\n")
    assert problems_of(reader.load, "extends: a.yaml\n") == "extends goes in a circle: exp.yaml -> a.yaml -> b.yaml -> a.yaml"


def test_bases_and_missing_parents_are_errors(reader, problems_of):
    text = problems_of(reader.load, "framework: megatron\nbases: [x.yaml]\nextends: [gone.yaml]\n")
    assert "exp.yaml:2: bases is not a word of Primus and inherits nothing; write extends" in text
    assert "exp.yaml:3: extends gone.yaml, but there is no file gone.yaml" in text
    shipped = problems_of(reader.load, "framework: megatron\nextends: language_model.yaml\n")
    assert "did you mean primus/configs/models/megatron/language_model.yaml?" in shipped
    assert "extends is one path or a list of paths" in problems_of(reader.load, "extends: {a: 1}\nframework: megatron\n")


def test_a_preset_carrying_bases_is_an_error(reader, problems_of):
    reader.write("own.yaml", "bases: [language_model.yaml]\n")
    text = problems_of(reader.load, "framework: megatron\nmodules: {pre_trainer: {model: own.yaml}}\n")
    assert "own.yaml:1: bases is not a word" in text
