"""The two ways of writing an experiment, its words, its run folder."""

import pytest


def test_both_ways_of_writing_overrides_give_the_same_parameters(reader):
    roles = "modules:\n  pre_trainer:\n    framework: megatron\n    config: pre_trainer.yaml\n    model: language_model.yaml\n"
    first = reader.load(roles + "    overrides: {train_iters: 50, hidden_size: 2048}\n")
    second = reader.load(
        "framework: megatron\nmodules:\n  pre_trainer:\n    overrides: {train_iters: 50}\n"
        "models:\n  pre_train:\n    overrides: {hidden_size: 2048}\n"
    )
    values = [{key: value.value for key, value in each.modules["pre_trainer"].params.items()} for each in (first, second)]
    assert values[0] == values[1]
    assert second.modules["pre_trainer"].params["hidden_size"].source == "exp.yaml:7"


def test_model_overrides_beat_the_module_preset(reader):
    text = "framework: megatron\nmodules: {pre_trainer: {}}\nmodels: {pre_train: {overrides: {seq_length: 77}}}\n"
    assert reader.load(text).modules["pre_trainer"].params["seq_length"].value == 77


def test_the_short_form_takes_presets_by_name(reader):
    module = reader.load("framework: megatron\nmodels: {pre_train: {model: llama2_7B.yaml}}\n").modules["pre_trainer"]
    assert (module.config.value, module.model.value) == ("pre_trainer.yaml", "llama2_7B.yaml")
    assert module.params["num_layers"].value == 32


def test_a_key_under_modules_and_models_is_an_error(reader, problems_of):
    text = "framework: megatron\nmodules: {pre_trainer: {overrides: {lr: 1}}}\nmodels: {pre_train: {overrides: {lr: 1}}}\n"
    assert problems_of(reader.load, text) == "lr is set under modules (exp.yaml:2) and under models (exp.yaml:3); keep one"


def test_a_model_entry_finds_its_module(reader, problems_of):
    both = "framework: megatron\nmodules: {pre_trainer: {}, post_trainer: {}}\nmodels: "
    loaded = reader.load(both + "{post_train: {overrides: {seed: 9}}, pre_trainer: {overrides: {seed: 8}}}\n").modules
    assert [loaded[role].params["seed"].value for role in ("pre_trainer", "post_trainer")] == [8, 9]
    assert "models.other (exp.yaml:3) belongs to no module" in problems_of(reader.load, both + "{other: {}}\n")


def test_every_unknown_word_is_reported_with_its_neighbours(reader, problems_of):
    text = problems_of(
        reader.load,
        "exp_nmae: a\nmodules:\n  pre_trainer:\n    framwork: x\n    framework: megatron\n    config: pre_trainer.yaml\n"
        "    model: language_model.yaml\n    lr: 3\n",
    )
    assert "exp_nmae (exp.yaml:1) is not a word at the top of an experiment. Did you mean exp_name?" in text
    assert "framwork (exp.yaml:4) is not a word in modules.pre_trainer. Did you mean framework?" in text
    assert "lr (exp.yaml:8) is not a word in modules.pre_trainer." in text
    assert "Parameters stand under overrides." in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exp_name: a\n", "there is no module"),
        ("modules: [a]\n", "exp.yaml:1: modules holds ['a'] instead of a map of roles"),
        ("modules:\n  pre_trainer: 3\n", "exp.yaml:2: modules.pre_trainer holds 3 instead of a map"),
        ("modules:\n  pre_trainer: {config: pre_trainer.yaml}\n", "modules.pre_trainer (exp.yaml:2) has no framework"),
        (
            "modules: {a: {framework: megatron, model: language_model.yaml}}\n",
            "modules.a (exp.yaml:1): config is missing",
        ),
        ("framework: megatorn\n", "framework megatorn (exp.yaml:1) is not known. Did you mean megatron or megatron_bridge?"),
        (
            "framework: megatron\nmodules: {pre_trainer: {overrides: [1]}}\n",
            "overrides holds [1] instead of a map",
        ),
        ("framework: megatron\nmodules: {pre_trainer: {config: 3}}\n", "config 3 (exp.yaml:2) is not the name of a preset"),
    ],
)
def test_a_broken_outline_says_what_belongs_there(reader, problems_of, text, message):
    assert message in problems_of(reader.load, text)


def test_empty_entries_count_as_empty_maps(reader):
    assert reader.load("framework: megatron\nmodules:\n  pre_trainer:\n    overrides:\n").modules["pre_trainer"].params
    assert reader.load("framework: megatron\nmodules:\n  pre_trainer:\n").modules["pre_trainer"].params


def test_a_missing_preset_lists_those_there_are_nearest_first(reader, problems_of):
    text = problems_of(
        reader.load, "framework: megatron\nmodules: {pre_trainer: {config: pretrainer.yaml, model: lama2_7B.yaml}}\n"
    )
    assert "config pretrainer.yaml (exp.yaml:2): no such preset in primus/configs/modules/megatron" in text
    assert "There are pre_trainer.yaml, " in text
    assert "There are llama2_7B.yaml, " in text


def test_a_preset_beside_the_experiment_needs_no_shipped_name(reader):
    reader.write("language_model.yaml", "extends: primus/configs/models/megatron/language_model.yaml\nhidden_size: 5\n")
    text = "framework: megatron\nmodules: {pre_trainer: {model: MODEL}}\n"
    shipped = reader.load(text.replace("MODEL", "language_model.yaml")).modules["pre_trainer"]
    own = reader.load(text.replace("MODEL", "./language_model.yaml")).modules["pre_trainer"]
    assert shipped.params["hidden_size"].value != 5
    assert own.params["hidden_size"].value == 5


def test_the_run_folder_has_sane_defaults(reader, tmp_path):
    experiment = reader.load("framework: megatron\n", env={"USER": "ann"})
    assert experiment.run_folder == tmp_path / "output" / "primus" / "ann" / "exp"
    assert reader.load("framework: megatron\n").user_name.value == "user"


def test_the_run_folder_follows_file_environment_and_words(reader):
    text = "framework: megatron\nwork_group: ${TEAM:amd}\nexp_name: 12\nworkspace: /data\nuser_name:\n"
    experiment = reader.load(text, ["--exp_name", "b", "workspace=/other"], env={"TEAM": "x", "USER": "ann"})
    assert str(experiment.run_folder) == "/other/x/ann/b"
    assert reader.load(text).exp_name.value == "12"


@pytest.mark.parametrize("name", ["/abs", "../up", "[1]", "1.5", "true"])
def test_a_name_that_is_no_folder_is_refused(reader, problems_of, name):
    assert "becomes a part of the run folder" in problems_of(reader.load, f"framework: megatron\nexp_name: {name}\n")


def test_words_may_address_the_file_itself(reader):
    words = ["modules.pre_trainer.model=llama2_7B.yaml", "--modules.pre_trainer.overrides.seed", "5"]
    params = reader.load("framework: megatron\n", words).modules["pre_trainer"].params
    assert (params["num_layers"].value, params["seed"].value) == (32, 5)
