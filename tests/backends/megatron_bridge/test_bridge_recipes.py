"""Recipes give the values of the reference and the shapes of the released models, and say what they do not take."""

import json
from typing import Any

import pytest
from released import RELEASED

from primus.backends.megatron.model_preset import model_keys
from primus.backends.megatron_bridge.container import CanonicalLoRA, DoRA, LoRA
from primus.backends.megatron_bridge.model_keys import keys_from_model
from primus.backends.megatron_bridge.recipes import arguments_of, built, find_flavor, flavors_of, recipe_names
from primus.engine.checkpoint.hf.read import model_of
from primus.errors import ConfigError

FOUR = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TWO = FOUR[:2]


def make(recipe: str, flavor: str, **given: Any):
    return built(find_flavor(recipe, flavor), given, name=flavor)


def refusal(recipe: str, flavor: str, **given: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        make(recipe, flavor, **given)
    return str(refused.value)


def sizes(config) -> tuple[int, int, int, bool]:
    m = config.model
    return (
        m.tensor_model_parallel_size,
        m.pipeline_model_parallel_size,
        m.expert_model_parallel_size,
        m.sequence_parallel,
    )


def adapter(config) -> tuple[int, float, list[str]]:
    return config.peft.dim, config.peft.alpha, config.peft.target_modules


# -- every flavor


def test_every_flavor_builds_without_a_network_and_with_its_defaults():
    for recipe in recipe_names():
        for name, flavor in flavors_of(recipe).items():
            if recipe != "auto":
                config = built(flavor, {}, name=name)
                assert config.train.train_iters > 0
                assert config.dataset.seq_length == config.model.seq_length <= config.model.max_position_embeddings


@pytest.mark.parametrize(("recipe", "model"), RELEASED, ids=lambda each: each)
def test_shape_is_that_of_the_released_model(recipe: str, model: str):
    _, released = model_of(RELEASED[recipe, model], model)
    config = make(recipe, f"{model}_finetune_config").model
    keys = keys_from_model(config)
    layers = released.num_layers
    moe_layers = eval(str(keys["moe_layer_freq"]))
    same_by_other_words = {
        "group_query_attention": True,
        "num_query_groups": keys["num_query_groups"] or config.num_attention_heads,
        "kv_channels": keys["kv_channels"] or config.hidden_size // config.num_attention_heads,
        "moe_layer_freq": [1] * layers if moe_layers == 1 else moe_layers,
        "moe_ffn_hidden_size": keys["moe_ffn_hidden_size"] or config.ffn_hidden_size,
        "rope_type": keys["rope_type"] or ("yarn" if config.multi_latent_attention else None),
        "original_max_position_embeddings": keys["original_max_position_embeddings"] or 8192,
    }
    ours = {**keys, **same_by_other_words, "moe_router_load_balancing_type": "none"}
    assert {key: (ours[key], value) for key, value in model_keys(released).items() if ours[key] != value} == {}


# -- values of the older generation

FINETUNE = [
    # recipe, model, full TP/PP/EP/SP, with adapters, LoRA dim, alpha, targets
    ("llama.llama3", "llama32_1b", (1, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("llama.llama3", "llama32_3b", (1, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("llama.llama3", "llama3_8b", (2, 1, 1, False), (1, 1, 1, False), 8, 16, FOUR),
    ("llama.llama3", "llama31_8b", (2, 1, 1, False), (1, 1, 1, False), 8, 16, FOUR),
    ("llama.llama3", "llama3_70b", (8, 4, 1, False), (8, 1, 1, False), 16, 32, FOUR),
    ("llama.llama3", "llama31_70b", (8, 4, 1, False), (8, 1, 1, False), 16, 32, FOUR),
    ("llama.llama3", "llama31_405b", (8, 16, 1, True), (4, 8, 1, True), 16, 32, ["linear_qkv"]),
    ("qwen.qwen3", "qwen3_600m", (1, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3", "qwen3_1p7b", (1, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3", "qwen3_4b", (2, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3", "qwen3_8b", (4, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3", "qwen3_14b", (8, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3", "qwen3_32b", (8, 2, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen2", "qwen25_500m", (1, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen2", "qwen25_7b", (2, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen2", "qwen25_14b", (4, 1, 1, False), (1, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen2", "qwen25_32b", (8, 2, 1, False), (8, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen2", "qwen25_72b", (8, 4, 1, False), (8, 1, 1, False), 32, 32, FOUR),
    ("qwen.qwen3_moe", "qwen3_30b_a3b", (4, 2, 4, True), (4, 1, 4, True), 8, 16, TWO),
    ("qwen.qwen3_moe", "qwen3_235b_a22b", (4, 16, 4, True), (4, 4, 4, True), 8, 16, TWO),
    ("gpt_oss.gpt_oss", "gpt_oss_20b", (1, 1, 8, False), (1, 1, 1, False), 32, 32, FOUR),
    ("gpt_oss.gpt_oss", "gpt_oss_120b", (1, 4, 8, False), (1, 1, 8, False), 32, 32, FOUR),
]


@pytest.mark.parametrize(
    ("recipe", "model", "full", "adapted", "dim", "alpha", "targets"), FINETUNE, ids=lambda each: str(each)
)
def test_finetune_flavor_has_the_ranks_and_sizes_of_its_row(recipe, model, full, adapted, dim, alpha, targets):
    whole = make(recipe, f"{model}_finetune_config", peft="none")
    lora = make(recipe, f"{model}_finetune_config")
    assert (sizes(whole), whole.peft, whole.optimizer.lr) == (full, None, 5e-6)
    assert (sizes(lora), lora.optimizer.lr) == (adapted, 1e-4)
    assert (type(lora.peft), adapter(lora)) == (LoRA, (dim, alpha, targets))


COMMON = {
    # iterations, batch, seq, eval/save interval, eval_iters, warm-up, beta2, log_interval
    ("llama.llama3", "llama3_8b"): (1000, 128, 2048, 30, 50, 32, 50, 0.98, 1),
    ("qwen.qwen3", "qwen3_8b"): (1000, 128, 2048, 30, 50, 32, 50, 0.98, 1),
    ("qwen.qwen2", "qwen25_7b"): (100, 128, 4096, 50, 100, 10, 10, 0.95, 1),
    ("qwen.qwen3_moe", "qwen3_30b_a3b"): (100, 32, 4096, 50, 100, 10, 10, 0.95, 10),
    ("gpt_oss.gpt_oss", "gpt_oss_20b"): (1000, 128, 2048, 50, 50, 32, 50, 0.98, 1),
}


def common(config) -> tuple[Any, ...]:
    train = config.train
    lengths = (train.train_iters, train.global_batch_size, config.dataset.seq_length)
    intervals = (train.eval_interval, config.checkpoint.save_interval, train.eval_iters)
    return (*lengths, *intervals, config.scheduler.lr_warmup_iters, config.optimizer.adam_beta2, config.logger.log_interval)


@pytest.mark.parametrize(("recipe", "model"), COMMON, ids=str)
def test_finetune_flavor_has_the_values_of_its_family(recipe: str, model: str):
    config = make(recipe, f"{model}_finetune_config")
    assert common(config) == COMMON[recipe, model]
    assert (config.rng.seed, config.dataset.seed, config.optimizer.min_lr, config.train.micro_batch_size) == (
        5678,
        5678,
        0.0,
        1,
    )
    assert (config.scheduler.start_weight_decay, config.optimizer.weight_decay, config.optimizer.adam_eps) == (0.033, 0.1, 1e-5)
    assert config.mixed_precision == "bf16_mixed"
    assert (config.dataset.dataset_name, config.dataset.val_proportion, config.dataset.do_test) == ("squad", 0.1, False)


def test_packing_changes_length_and_batch_as_the_family_says():
    def of(recipe, flavor):
        config = make(recipe, flavor, packed_sequence=True)
        assert config.dataset.packed_sequence_specs.packed_sequence_size == config.dataset.seq_length
        assert config.dataset.dataset_kwargs == {"pad_to_max_length": True}
        return config.dataset.seq_length, config.train.global_batch_size

    assert of("llama.llama3", "llama3_8b_finetune_config") == (4096, 8)
    assert of("qwen.qwen3", "qwen3_8b_finetune_config") == (2048, 8)
    assert of("qwen.qwen3_moe", "qwen3_30b_a3b_finetune_config") == (2048, 32)
    assert make("qwen.qwen3", "qwen3_8b_finetune_config").dataset.packed_sequence_specs is None


def test_another_length_is_also_that_of_the_packs():
    config = make("llama.llama3", "llama3_8b_finetune_config", packed_sequence=True, seq_length=512)
    assert (config.model.seq_length, config.dataset.packed_sequence_specs.packed_sequence_size) == (512, 512)


def test_llama_with_adapters_does_without_the_distributed_optimizer_and_the_fused_loss():
    whole, lora = (make("llama.llama3", "llama31_70b_finetune_config", peft=peft) for peft in ("none", "lora"))
    assert (whole.ddp.use_distributed_optimizer, whole.model.cross_entropy_loss_fusion) == (True, True)
    assert (lora.ddp.use_distributed_optimizer, lora.optimizer.use_distributed_optimizer) == (False, False)
    assert lora.model.cross_entropy_loss_fusion is False


def test_every_finetune_flavor_takes_the_mean_over_tokens():
    for recipe in recipe_names():
        for name, flavor in flavors_of(recipe).items():
            if name.endswith(("finetune_config", "sft_config", "peft_config")) and recipe != "auto":
                assert built(flavor, {}, name=name).model.calculate_per_token_loss, name


# -- values of the newer generation

NEWER = [
    # recipe, model, seq, batch, iterations, warm-up, decay, beta2, eval/save, LoRA
    ("llama.llama3", "llama3_8b", 4096, 8, 1000, 50, None, 0.98, 30, 50, (8, 16, FOUR)),
    ("llama.llama3", "llama3_70b", 4096, 8, 1000, 50, None, 0.98, 30, 50, (16, 32, FOUR)),
    ("llama.llama3", "llama31_70b", 4096, 8, 1000, 50, None, 0.98, 30, 50, (16, 32, FOUR)),
    ("qwen.qwen3", "qwen3_8b", 2048, 32, 100, 10, 100, 0.95, 30, 100, (8, 16, TWO)),
    ("qwen.qwen3", "qwen3_32b", 2048, 8, 1000, 50, None, 0.98, 30, 50, (32, 32, FOUR)),
    ("qwen.qwen3_moe", "qwen3_30b_a3b", 2048, 32, 100, 10, None, 0.95, 50, 100, (8, 16, TWO)),
]


@pytest.mark.parametrize(
    ("recipe", "model", "seq", "batch", "iters", "warmup", "decay", "beta2", "evals", "saves", "lora"),
    NEWER,
    ids=lambda each: str(each),
)
def test_sft_and_peft_flavors_have_the_values_of_their_row(
    recipe, model, seq, batch, iters, warmup, decay, beta2, evals, saves, lora
):
    whole, adapted = make(recipe, f"{model}_sft_config"), make(recipe, f"{model}_peft_config")
    for config, lr in ((whole, 5e-6), (adapted, 1e-4)):
        assert (config.dataset.packed_sequence_specs.packed_sequence_size, config.train.global_batch_size) == (seq, batch)
        assert (config.train.train_iters, config.scheduler.lr_warmup_iters, config.scheduler.lr_decay_iters) == (
            iters,
            warmup,
            decay,
        )
        assert (config.optimizer.adam_beta2, config.optimizer.lr) == (beta2, lr)
        assert (config.train.eval_interval, config.checkpoint.save_interval) == (evals, saves)
    older = make(recipe, f"{model}_finetune_config", peft="none")
    assert (whole.peft, sizes(whole)) == (None, sizes(older))
    assert adapter(adapted) == lora


# -- pretraining


def test_pretraining_has_the_values_of_its_family():
    config = make("llama.llama3", "llama31_70b_pretrain_config")
    m = config.model
    assert (sizes(config), m.virtual_pipeline_model_parallel_size, m.context_parallel_size) == ((4, 4, 1, True), 5, 2)
    assert (config.train.train_iters, config.train.global_batch_size, config.dataset.seq_length) == (1168251, 512, 131072)
    assert (config.optimizer.lr, config.optimizer.min_lr, config.scheduler.lr_warmup_iters) == (3e-4, 3e-5, 2000)
    assert (config.tokenizer.tokenizer_type, config.tokenizer.vocab_size) == ("NullTokenizer", 32000)
    assert config.ddp.overlap_grad_reduce
    assert config.ddp.average_in_collective
    assert make("qwen.qwen3", "qwen3_8b_pretrain_config").tokenizer.tokenizer_model == "Qwen/Qwen3-8B"


def test_pretraining_reads_what_is_named_and_makes_data_up_otherwise():
    mock = make("qwen.qwen3", "qwen3_8b_pretrain_config").dataset
    assert (mock.blend, mock.blend_per_split, mock.split) == (None, None, "1,1,1")
    blend = make("qwen.qwen3", "qwen3_8b_pretrain_config", data_paths=["0.3", "a", "0.7", "b"]).dataset
    assert (blend.blend, blend.split) == (["0.3", "a", "0.7", "b"], "9999,8,2")
    apart = make("qwen.qwen3", "qwen3_8b_pretrain_config", train_data_path=["a"], valid_data_path=["b"]).dataset
    assert (apart.blend_per_split, apart.split) == ([["a"], ["b"], None], None)


# -- arguments


def test_adapter_arguments_reach_the_adapter():
    given = {"peft_dim": 4, "peft_alpha": 12, "peft_dropout": 0.1, "peft_target_modules": ["linear_qkv"]}
    peft = make("llama.llama3", "llama31_70b_finetune_config", **given).peft
    assert (peft.dim, peft.alpha, peft.dropout, peft.target_modules) == (4, 12, 0.1, ["linear_qkv"])


@pytest.mark.parametrize(
    ("peft", "expected"),
    [
        ("dora", (DoRA, 32, 64)),
        ("canonical_lora", (CanonicalLoRA, 32, 32)),
        ({"type": "dora", "dim": 6}, (DoRA, 6, 64)),
        ({"dim": 6}, (LoRA, 6, 32)),
        ({"type": "lora", "dim": None, "alpha": None, "dropout": None}, (LoRA, 32, 32)),
    ],
    ids=str,
)
def test_schemes_have_their_own_defaults(peft, expected):
    found = make("qwen.qwen3", "qwen3_8b_finetune_config", peft=peft).peft
    assert (type(found), found.dim, found.alpha) == expected


def test_sizes_of_a_flavor_hold_for_every_scheme():
    found = make("llama.llama3", "llama3_8b_finetune_config", peft="dora").peft
    assert (found.dim, found.alpha) == (8, 16)
    parts = make("qwen.qwen3_moe", "qwen3_30b_a3b_finetune_config", peft="canonical_lora").peft
    assert parts.target_modules == ["linear_q", "linear_k", "linear_v", "linear_proj"]


@pytest.mark.parametrize("peft", ["none", "None", None])
def test_no_adapters_in_every_spelling(peft):
    assert make("qwen.qwen3", "qwen3_8b_finetune_config", peft=peft).peft is None


def test_null_is_the_flavors_own_value():
    config = make("llama.llama3", "llama3_8b_finetune_config", finetune_lr=None, train_iters=None, lr_decay_iters=None)
    assert (config.optimizer.lr, config.train.train_iters) == (1e-4, 1000)


def test_the_users_weights_win_and_the_tokenizer_follows():
    own = make("llama.llama3", "llama3_8b_finetune_config", hf_path="NousResearch/Meta-Llama-3-8B")
    assert own.checkpoint.hf_path == own.tokenizer.tokenizer_model == "NousResearch/Meta-Llama-3-8B"
    started = make("llama.llama3", "llama3_8b_finetune_config", pretrained_checkpoint="ckpt")
    assert (started.checkpoint.hf_path, started.checkpoint.pretrained_checkpoint) == (None, "ckpt")


def test_a_folder_of_weights_says_the_numbers_that_its_shape_leaves_open(tmp_path):
    instruct = {**RELEASED["qwen.qwen2", "qwen25_14b"], "rms_norm_eps": 1e-6, "max_position_embeddings": 32768}
    (tmp_path / "config.json").write_text(json.dumps(instruct))
    model = make("qwen.qwen2", "qwen25_14b_finetune_config", hf_path=str(tmp_path)).model
    assert (model.layernorm_epsilon, model.max_position_embeddings, model.hidden_size) == (1e-6, 32768, 5120)


def test_auto_takes_the_shape_from_the_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(RELEASED["qwen.qwen3", "qwen3_600m"]))
    config = make("auto", "finetune_config", hf_path=str(tmp_path))
    assert (config.model.num_layers, config.model.hidden_size, config.model.qk_layernorm) == (28, 1024, True)
    assert config.checkpoint.hf_path == config.tokenizer.tokenizer_model == str(tmp_path)
    assert "set it to a folder" in refusal("auto", "finetune_config")


def test_dir_and_name_are_where_the_run_writes():
    config = make("qwen.qwen3", "qwen3_8b_finetune_config", dir="/out", name="run")
    assert (config.checkpoint.save, config.logger.tensorboard_dir) == ("/out/run/checkpoints", "/out/run/tb_logs")


def test_flavors_show_their_arguments_to_inspect():
    taken = arguments_of(find_flavor("qwen.qwen3", "qwen3_8b_finetune_config"))
    assert (taken["train_iters"].default, taken["peft"].default, taken["finetune_lr"].default) == (1000, "lora", None)
    assert not set(taken) & {"lr", "mock"}


# -- refusals


def test_wrong_argument_is_named_with_the_flavor_and_what_it_takes():
    message = refusal("qwen.qwen3", "qwen3_8b_pretrain_config", peft="lora")
    assert message.startswith("qwen3_8b_pretrain_config takes no argument peft; it takes dir, name, hf_path")


def test_unknown_scheme_is_refused_with_the_nearest():
    assert "peft lorra is not known" in refusal("qwen.qwen3", "qwen3_8b_finetune_config", peft="lorra")
    message = refusal("qwen.qwen3", "qwen3_8b_finetune_config", peft={"type": "lora", "dims": 3})
    assert message == "peft.dims: adapters have no such field. Did you mean dim?"


def test_adapter_sizes_without_adapters_are_refused():
    message = refusal("qwen.qwen3", "qwen3_8b_finetune_config", peft="none", peft_dim=4)
    assert message == "peft_dim 4: peft is none, so there are no adapters; set peft: lora"


def test_unknown_field_of_a_policy_is_refused():
    message = refusal("qwen.qwen3", "qwen3_8b_finetune_config", comm_overlap_config={"tp_comm_overlaps": True})
    assert message.startswith("comm_overlap_config.tp_comm_overlaps: CommOverlapConfig has no such field.")
