"""What a recipe returns, with the user's words merged in."""

from dataclasses import asdict

import pytest

from primus.backends.megatron_bridge import config_utils
from primus.backends.megatron_bridge.config_utils import _merge_dict_to_dataclass, load_recipe_config
from primus.backends.megatron_bridge.container import DoRA, MixedPrecisionConfig
from primus.backends.megatron_bridge.words import node_of
from primus.core.experiment.value import Tree, Value
from primus.core.experiment.value import merged as laid_over
from primus.errors import ConfigError

TINY = {"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_finetune_config"}
PRESET = "primus/configs/models/megatron_bridge/x.yaml:3"


def loaded(**words):
    return load_recipe_config({**TINY, **words})


def merged(**nodes):
    named = {name: Value(value, PRESET) for name, value in TINY.items()}
    return config_utils.merged(named | nodes)


def problems(**words):
    with pytest.raises(ConfigError) as caught:
        loaded(**words)
    return caught.value.problems


@pytest.mark.parametrize(
    ("word", "value", "paths"),
    [
        ("finetune_lr", 2e-4, ["optimizer.lr"]),
        ("lr", 2e-4, ["optimizer.lr"]),
        ("optimizer", "sgd", ["optimizer.optimizer"]),
        ("seq_length", 256, ["model.seq_length", "dataset.seq_length"]),
        ("use_distributed_optimizer", False, ["optimizer.use_distributed_optimizer", "ddp.use_distributed_optimizer"]),
        ("use_megatron_fsdp", True, ["ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"]),
        ("seed", 7, ["rng.seed", "dataset.seed"]),
        ("recompute_granularity", "full", ["model.recompute_granularity"]),
        ("num_experts", 4, ["model.num_moe_experts"]),
        ("cross_entropy_loss_fusion", False, ["model.cross_entropy_loss_fusion"]),
        ("eval_iters", 3, ["train.eval_iters"]),
        ("save_interval", 3, ["checkpoint.save_interval"]),
        ("pretrained_checkpoint", "x", ["checkpoint.pretrained_checkpoint"]),
        ("log_interval", 3, ["logger.log_interval"]),
        ("wandb_project", "x", ["logger.wandb_project"]),
        ("lr_decay_style", "linear", ["scheduler.lr_decay_style"]),
        ("precision_config", "fp32", ["mixed_precision"]),
        ("peft_dim", 3, ["peft.dim"]),
        ("peft_alpha", 5, ["peft.alpha"]),
        ("peft_dropout", 0.5, ["peft.dropout"]),
        ("peft_target_modules", "linear_qkv", ["peft.target_modules"]),
        ("dataset_name", "a/b", ["dataset.dataset_name"]),
        ("log_straggler", True, ["straggler.log_straggler"]),
    ],
)
def test_a_flat_key_finds_its_fields_and_tells_where_it_was_set(word, value, paths):
    found = merged(**{word: Value(value, "exp.yaml:9")})
    for path in paths:
        part, _, name = path.partition(".")
        held = getattr(found.config, part)
        expected = [value] if word == "peft_target_modules" else value
        assert (getattr(held, name) if name else held) == expected
        known = name == word
        assert found.sources[path] == ("exp.yaml:9" if known else f"exp.yaml:9 as {word}")


def test_null_of_an_argument_is_the_recipes_value():
    words = ("lr_decay_iters", "finetune_lr", "train_iters", "comm_overlap_config", "pipeline_dtype", "precision_config")
    assert asdict(loaded(**dict.fromkeys(words))) == asdict(loaded())


def test_null_in_a_preset_is_the_recipes_value():
    presets = {word: Value(None, PRESET) for word in ("save", "eval_iters", "dataset_name", "use_turbo_rms_norm")}
    found = merged(**presets, optimizer=Tree({"weight_decay": Value(None, PRESET)}, PRESET))
    assert (asdict(found.config), found.direct) == (asdict(loaded()), {})


def test_null_of_any_other_key_clears_its_field():
    config = loaded(
        save=None, tensorboard_dir=None, dataset_name=None, lr_warmup_fraction=None, scheduler={"lr_decay_iters": None}
    )
    assert (config.checkpoint.save, config.checkpoint.load, config.checkpoint.save_interval) == (None, None, None)
    assert (config.logger.tensorboard_dir, config.dataset.dataset_name) == (None, None)
    assert loaded(save=None, save_interval=3).checkpoint.save_interval == 3
    assert merged(no_load_optim=Value(None, PRESET), tp_comm_overlap_cfg=Value(None, "exp.yaml:3")).direct == {}


def test_null_of_a_field_that_must_have_a_value_is_refused():
    found = problems(eval_iters=None, optimizer={"weight_decay": None}, use_turbo_rms_norm=None)
    assert found[:2] == (
        "eval_iters null (backend_args): train.eval_iters cannot be empty; leave it out, and it is 32, as the recipe says.",
        "optimizer.weight_decay null (backend_args): optimizer.weight_decay cannot be empty; leave it out, and it is 0.1, "
        "as the recipe says.",
    )
    assert found[2].startswith("use_turbo_rms_norm null (backend_args) must be true or false")
    absent = "profiling.profile_step_end null (backend_args): profiling.profile_step_end cannot be empty; leave it out."
    assert problems(profiling={"profile_step_end": None}) == (absent,)


def test_a_run_goes_on_from_where_it_saves():
    config = loaded(save="there")
    assert (config.checkpoint.save, config.checkpoint.load) == ("there", "there")
    assert loaded(save="there", load="here").checkpoint.load == "here"
    assert loaded(load=None).checkpoint.load is None
    assert (loaded(skip_save=True).checkpoint.load, loaded(dir="x", save=None).checkpoint.load) == (None, None)


def test_null_of_adapters_trains_all_weights():
    assert loaded(peft=None).peft is None
    assert loaded(peft="none").peft is None
    assert loaded(peft={"type": "none"}).peft is None


def test_maps_lie_over_sub_configs():
    config = loaded(
        optimizer={"lr": 1, "adam_eps": "1e-7"},
        scheduler={"lr_decay_iters": None},
        model={"recompute_granularity": None, "pipeline_dtype": "torch.bfloat16"},
        dataset={"dataset_kwargs": {"chat": True}, "packed_sequence_specs": {"packed_sequence_size": 64}},
        comm_overlap={"overlap_grad_reduce": True},
        mixed_precision={"grad_reduce_in_fp32": False},
    )
    assert (config.optimizer.lr, type(config.optimizer.lr)) == (1.0, float)
    assert config.optimizer.adam_eps == 1e-7
    assert config.scheduler.lr_decay_iters is None
    assert config.model.pipeline_dtype == "bf16"
    assert config.dataset.dataset_kwargs["chat"] is True
    assert config.dataset.packed_sequence_specs.packed_sequence_size == 64
    assert config.comm_overlap.overlap_grad_reduce is True
    assert isinstance(config.mixed_precision, MixedPrecisionConfig)
    assert (config.mixed_precision.fp32, config.mixed_precision.grad_reduce_in_fp32) == (True, False)


def test_adapters_can_be_a_map():
    config = loaded(peft={"type": "dora", "dim": 4, "exclude_modules": ["linear_fc1"]})
    assert isinstance(config.peft, DoRA)
    assert (config.peft.dim, config.peft.exclude_modules) == (4, ["linear_fc1"])


def test_the_nearer_word_wins():
    file, cli = Value(1e-3, "exp.yaml:3"), Value(2e-3, "cli")
    flat = merged(optimizer=Tree({"lr": file}, "exp.yaml:2"), finetune_lr=cli)
    assert (flat.config.optimizer.lr, flat.sources["optimizer.lr"]) == (2e-3, "cli as finetune_lr")
    nested = merged(optimizer=Tree({"lr": file}, "exp.yaml:2"), finetune_lr=Value(5.0, "exp.yaml:9"))
    assert (nested.config.optimizer.lr, nested.sources["optimizer.lr"]) == (1e-3, "exp.yaml:3 as optimizer.lr")
    preset = merged(optimizer=Tree({"lr": Value(5.0, PRESET)}, PRESET), finetune_lr=file)
    assert preset.config.optimizer.lr == 1e-3


def test_a_field_wins_over_what_says_all_of_its_sub_config():
    words = {"loss_scale": Value(8, "exp.yaml:3"), "precision_config": Value("fp16_mixed", "cli")}
    for order in (words, dict(reversed(words.items()))):
        precision = merged(**order).config.mixed_precision
        assert (precision.fp16, precision.loss_scale) == (True, 8)


def laid(below, above):
    """Return what `merged` makes of words in a file with others on the command line over them."""
    trees = [node_of({**TINY, **words}, source) for words, source in ((below, "exp.yaml:3"), (above, "cli"))]
    return config_utils.merged(laid_over(*trees).children)


def test_a_map_over_a_word_leaves_what_the_word_says():
    adapters = laid({"peft": "dora"}, {"peft": {"dim": 4}}).config.peft
    assert (type(adapters), adapters.dim) == (DoRA, 4)
    for word in ("precision_config", "mixed_precision"):
        precision = laid({word: "fp16_mixed"}, {word: {"loss_scale": 8}}).config.mixed_precision
        assert (precision.fp16, precision.bf16, precision.grad_reduce_in_fp32, precision.loss_scale) == (True, False, False, 8)
    for below, above in (
        ({"optimizer": "sgd"}, {"optimizer": {"lr": 0.5}}),
        ({"optimizer": {"lr": 0.5}}, {"optimizer": "sgd"}),
    ):
        assert (laid(below, above).config.optimizer.optimizer, laid(below, above).config.optimizer.lr) == ("sgd", 0.5)
    with pytest.raises(ConfigError, match=r"peft.dim 4: peft is none, so there are no adapters; set peft: lora \(cli\)"):
        laid({"peft": "none"}, {"peft": {"dim": 4}})
    with pytest.raises(ConfigError, match=r"precision_config bf17 is not known"):
        laid({"precision_config": "bf17"}, {"precision_config": {"loss_scale": 8}})


def test_a_word_that_another_goes_before_is_told():
    file, later = Value(6, "exp.yaml:3"), Value(8, "exp.yaml:9")
    found = merged(train_iters=file, train=Tree({"train_iters": later}, "exp.yaml:8"))
    assert found.config.train.train_iters == 8
    assert found.notices == ("train_iters 6 (exp.yaml:3) has no effect: train.train_iters 8 (exp.yaml:9) goes before it.",)
    assert merged(save_interval=file, skip_save=Value(True, "exp.yaml:4")).notices == (
        "save_interval 6 (exp.yaml:3) has no effect: skip_save true (exp.yaml:4) goes before it.",
    )
    both = Tree({"use_distributed_optimizer": Value(False, "exp.yaml:9")}, "exp.yaml:8")
    assert merged(use_distributed_optimizer=Value(True, "exp.yaml:3"), ddp=both).notices == (), "it decides a field of another"
    own = Tree({"tokenizer_model": Value("t", "exp.yaml:9")}, "exp.yaml:8")
    assert merged(hf_path=Value("a", "exp.yaml:3"), tokenizer=own).notices == (), "weights come from there"
    assert merged(train_iters=Value(6, "cli"), train=Tree({"train_iters": later}, "exp.yaml:8")).notices == ()
    assert merged(train_iters=Value(6, PRESET), train=Tree({"train_iters": later}, "exp.yaml:8")).notices == ()
    assert merged(train_iters=Value(8, "exp.yaml:3"), train=Tree({"train_iters": later}, "exp.yaml:8")).notices == ()


def test_null_may_be_spelt_as_python_does():
    words = (
        "lr_decay_iters",
        "finetune_lr",
        "train_iters",
        "precision_config",
        "packed_sequence",
        "expert_model_parallel_size",
    )
    assert asdict(loaded(**dict.fromkeys(words, "None"))) == asdict(loaded())
    assert loaded(peft="None").peft is None


def test_megatron_keys_without_a_field_pass_by():
    found = merged(
        use_turbo_parallel_linear=Value(True, "exp.yaml:3"), no_save_optim=Value("true", "cli"), swiglu=Value(True, "cli")
    )
    assert found.direct["use_turbo_gemm"] == Value(True, "exp.yaml:3 as use_turbo_parallel_linear")
    assert (found.direct["no_save_optim"].value, found.direct["swiglu"].value) == (True, True)


def test_one_length_is_that_of_model_data_and_packs():
    config = loaded(packed_sequence=True, micro_batch_size=1, model={"seq_length": 96})
    assert (config.model.seq_length, config.dataset.seq_length) == (96, 96)
    assert config.dataset.packed_sequence_specs.packed_sequence_size == 96


def test_weight_decay_acts_although_a_recipe_schedules_it():
    config = loaded(weight_decay=0.25)
    assert (config.scheduler.start_weight_decay, config.scheduler.end_weight_decay) == (0.25, 0.25)
    assert loaded(weight_decay=0.25, end_weight_decay=0.5).scheduler.end_weight_decay == 0.5


def test_a_length_in_samples_takes_the_place_of_the_recipes_iterations():
    config = loaded(train_samples=64)
    assert (config.train.train_iters, config.train.train_samples) == (None, 64)
    assert (config.scheduler.lr_warmup_iters, config.scheduler.lr_decay_iters) == (0, None)


def test_a_folder_of_rows_takes_the_place_of_a_presets_name():
    folder = Tree({"dataset_root": Value("rows", "exp.yaml:3"), "dataset_name": Value("squad", PRESET)}, "exp.yaml:2")
    assert merged(dataset=folder).config.dataset.dataset_name is None
    both = Tree({"dataset_root": Value("rows", "exp.yaml:3"), "dataset_name": Value("squad", "exp.yaml:4")}, "exp.yaml:2")
    assert merged(dataset=both).config.dataset.dataset_name == "squad"


def test_a_null_tokenizer_has_the_vocabulary_of_its_model():
    training = {"flavor": "vanilla_gpt_pretrain_config", "use_null_tokenizer": True}
    config = loaded(**training, vocab_size=700)
    assert (config.model.vocab_size, config.tokenizer.vocab_size) == (700, 699)
    config = loaded(**training, tokenizer={"vocab_size": 300})
    assert (config.model.vocab_size, config.tokenizer.vocab_size) == (301, 300)
    assert loaded(vocab_size=700).tokenizer.vocab_size is None


def test_the_seed_of_a_run_orders_its_documents():
    training = {"flavor": "vanilla_gpt_pretrain_config"}
    assert loaded(**training, rng={"seed": 7}).dataset.random_seed == 7
    assert loaded(**training, rng={"seed": 7}, dataset={"random_seed": 8}).dataset.random_seed == 8
    assert loaded(rng={"seed": 7}).dataset.seed == 5678, "rows have a seed of their own"


def test_nothing_is_saved_on_request():
    config = loaded(skip_save=True)
    assert (config.checkpoint.save, config.checkpoint.save_interval) == (None, None)
    assert loaded(skip_save=False).checkpoint.save is not None


def test_a_cached_model_reaches_the_recipe_as_its_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(config_utils, "cached_folder", {"a/b": tmp_path}.get)
    assert loaded(hf_path="a/b").checkpoint.hf_path == str(tmp_path)
    assert loaded(hf_path="c/d").checkpoint.hf_path == "c/d"


def test_all_that_is_wrong_is_told_at_once():
    found = problems(
        train_iterz=3,
        train_iters="abc",
        optimizer={"lrr": 3, "adam_eps": "small"},
        checkpoint=3,
        lr=1,
        finetune_lr=2,
        mock="foo",
    )
    assert next(line for line in found if line.startswith("train_iterz 3 (backend_args) is not a key")).endswith("train?")
    assert "train_iters abc (backend_args) must be an integer or null." in found
    assert "optimizer.lrr 3 (backend_args) is not known: OptimizerConfig has no field lrr; did you mean lr?" in found
    assert "optimizer.adam_eps small (backend_args) must be a number." in found
    assert "checkpoint 3 (backend_args) must be a map." in found
    assert (
        "lr 1 (backend_args) and finetune_lr 2 (backend_args) are two names of one rate, and differ; keep finetune_lr." in found
    )
    assert "mock 'foo' must be true or false (backend_args)" in found
    assert len(found) == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"peft": "lorra"}, "peft lorra is not known; there are none, lora, dora, canonical_lora"),
        ({"peft": ""}, 'peft "" is not known; there are none, lora, dora, canonical_lora'),
        ({"peft": {"type": "none", "dim": 4}}, "peft.dim 4: peft is none, so there are no adapters; set peft: lora"),
        ({"peft": {"dim": {}}}, "peft.dim {} (backend_args) must be an integer."),
        ({"optimizer": {"lr": {}}}, "optimizer.lr {} (backend_args) must be a number or null."),
        ({"dataset": None}, "dataset null (backend_args): dataset cannot be empty; leave it out."),
        ({"skip_save": 1}, "skip_save 1 (backend_args) must be true or false"),
        ({"peft": "none", "peft_dim": 4}, "peft_dim 4: peft is none, so there are no adapters; set peft: lora"),
        ({"data_paths": "a"}, "gpt.vanilla_gpt vanilla_gpt_finetune_config does not take it"),
        ({"bf16": True}, "bf16 true (backend_args): dtypes are what precision_config says"),
        ({"flavor": "vanilla_gpt_finetun_config"}, "Did you mean vanilla_gpt_finetune_config"),
        ({"recipe": "gpt.vanila_gpt"}, "Did you mean gpt.vanilla_gpt"),
        ({"recipe": None}, "recipe must be set"),
        ({"recipe": 3}, "recipe 3 (backend_args) must be set: recipe names a module of recipes such as qwen.qwen3"),
        ({"recipe": "llama"}, "recipe llama is a family: name one of llama.llama2, llama.llama3."),
        ({"peft": {"type": "dora", "dimm": 4}}, "peft.dimm: adapters have no such field. Did you mean dim? (backend_args)"),
        ({"optimizer": {"lr": {"a": 1}}}, "cannot be set: lr is a number or null, which has no parts"),
        (
            {"checkpoint": {"save_retain_interval": 2}},
            "CheckpointConfig has no field save_retain_interval; it is a key of its own, outside of the map.",
        ),
        ({"mixed_precision": {"bf17": True}}, "MixedPrecisionConfig has no field bf17"),
        (
            {"flavor": "vanilla_gpt_pretrain_config", "mock": False},
            "mock false (backend_args): no data is named; set data_paths, or mock: true.",
        ),
        (
            {"flavor": "vanilla_gpt_pretrain_config", "use_null_tokenizer": False},
            "use_null_tokenizer false (backend_args): no tokenizer is named; set hf_path, or leave it out.",
        ),
        (
            {"mock": True, "mock_data": False},
            "mock true (backend_args) and mock_data false (backend_args) are two names of one thing, and differ; keep mock.",
        ),
        ({"skip_save": "perhaps"}, "skip_save perhaps (backend_args) must be true or false"),
    ],
)
def test_a_wrong_word_is_refused_with_what_would_be_right(words, said):
    assert any(said in line for line in problems(**words)), problems(**words)


def test_an_argument_that_pretraining_does_not_take():
    found = problems(flavor="vanilla_gpt_pretrain_config", finetune_lr=1, peft="lora", packed_sequence=True)
    assert [line.split()[0] for line in found] == ["finetune_lr", "peft", "packed_sequence"]


def test_a_dictionary_is_merged_into_a_dataclass():
    config = loaded()
    _merge_dict_to_dataclass(config, {"train": {"train_iters": "5"}, "scheduler": {"lr_decay_iters": None}, "peft": None})
    assert (config.train.train_iters, config.scheduler.lr_decay_iters, config.peft) == (5, None, None)
    _merge_dict_to_dataclass(config, {"profiling": {"profile_ranks": [1]}, "peft": {"type": "dora", "dim": 2}})
    assert (config.profiling.profile_ranks, config.peft.dim) == ([1], 2)
    with pytest.raises(ConfigError) as caught:
        _merge_dict_to_dataclass(config, {"trian": {"train_iters": 5}, "train": {"train_iters": True}})
    assert len(caught.value.problems) == 2
    assert "did you mean train" in caught.value.problems[0]
