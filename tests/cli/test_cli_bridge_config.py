"""`primus config` on experiments of framework megatron_bridge."""

import json
from pathlib import Path

import pytest

from primus.backends.megatron_bridge.keys import KEYS

# The flavor is the preset's other one.
BRIDGE = """\
modules:
  post_trainer:
    framework: megatron_bridge
    config: sft_trainer.yaml
    model: vanilla_gpt.yaml
    overrides:
      flavor: vanilla_gpt_finetune_config
      finetune_lr: 1e-3
      peft: lora
      peft_dim: 3
      optimizer: {adam_eps: 1}
"""


@pytest.fixture
def bridge():
    Path("bridge.yaml").write_text(BRIDGE)
    return "bridge.yaml"


def test_show_has_words_and_fields_with_their_sources(primus, bridge):
    outcome = primus("config", "show", bridge, "--json", "train_iters=7", "dataset.seed=3")
    assert (outcome.code, outcome.err) == (0, "")
    module = json.loads(outcome.out)["modules"]["post_trainer"]
    params = module["params"]
    assert module["framework"] == "megatron_bridge"
    assert params["finetune_lr"] == {"value": 1e-3, "source": "bridge.yaml:8"}
    assert params["optimizer.lr"] == {"value": 1e-3, "source": "bridge.yaml:8 as finetune_lr"}
    assert params["optimizer.adam_eps"] == {"value": 1.0, "source": "bridge.yaml:11 as optimizer.adam_eps"}
    assert params["peft.dim"] == {"value": 3, "source": "bridge.yaml:10 as peft_dim"}
    assert params["train.train_iters"] == {"value": 7, "source": "cli"}
    assert params["dataset.seed"]["value"] == 3
    assert params["optimizer.adam_beta1"]["source"] == "recipe gpt.vanilla_gpt"
    assert params["use_turbo_rms_norm"]["source"].startswith("primus/configs/modules/megatron_bridge/sft_trainer.yaml:")


def test_show_still_shows_what_is_wrong_and_leaves_with_2(primus, bridge):
    outcome = primus("config", "show", bridge, "finetune_lr=abc", "peft_dimm=4")
    assert outcome.code == 2
    assert "finetune_lr abc (cli) must be a number or null." in outcome.err
    assert "peft_dimm 4 (cli) is not a key of framework megatron_bridge. Did you mean peft_dim" in outcome.err
    assert "abc  # cli" in outcome.out


def test_explain_finds_keys_of_both_languages(primus):
    out = primus("config", "explain", "peft_dim").out
    assert "changes  peft.dim" in out
    assert "primus/configs/modules/megatron_bridge/sft_trainer.yaml:" in primus("config", "explain", "stage").out
    assert "peak" in primus("config", "explain", "lr", "--framework", "megatron_bridge").out.lower()
    both = primus("config", "explain", "peft_dimm")
    assert both.code == 2
    assert "megatron or megatron_bridge. Did you mean peft_dim" in both.err


def test_coverage_counts_the_documented_keys(primus):
    counted = json.loads(primus("config", "coverage", "--json", "--framework", "megatron_bridge").out)
    assert counted["live"] + counted["pending"] + counted["inert"] == len(counted["keys"]) == len(KEYS)
    assert counted["keys"]["peft_alpha"] == {"status": "live", "reason": ""}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("optimizer.lr", "The key `lr`: Peak learning rate"),
        ("dataset_root", "dataset.dataset_root\n  A field of `dataset`: see docs/posttraining.md."),
        ("peft.dropout_position", "see docs/adapters.md"),
        ("checkpoint.save_rng", "The contrary of the key `no_save_rng`"),
        ("model.batch_p2p_comm", "Changes nothing here: messages between stages"),
        ("logger.log_energy", "Not implemented yet"),
    ],
)
def test_fields_of_the_container_are_explained(primus, name, said):
    assert said in primus("config", "explain", name).out
    assert primus("config", "explain", name, "--framework", "megatron").code == 2


def test_the_key_page_in_the_repository_is_the_generated_one(primus):
    page = Path(__file__).parents[2] / "docs" / "bridge-keys.md"
    out = primus("config", "docs", "--framework", "megatron_bridge").out
    assert page.read_text() == out, "run: primus config docs --framework megatron_bridge --out docs/bridge-keys.md"
    assert all(f"| `{name}` |" in out for name in KEYS)


@pytest.mark.parametrize("preset", ["sft_trainer.yaml", "pretrain_trainer.yaml"])
def test_module_presets_have_the_documented_defaults(primus, preset):
    Path("b.yaml").write_text(BRIDGE.replace("sft_trainer.yaml", preset))
    params = json.loads(primus("config", "show", "b.yaml", "--json").out)["modules"]["post_trainer"]["params"]
    documented = {
        "trainable": True,
        "stage": preset.partition("_")[0],
        "sink_level": None,
        "file_sink_level": "DEBUG",
        "stderr_sink_level": "INFO",
        "enable_primus_turbo": True,
        "use_turbo_parallel_linear": False,
        "use_turbo_grouped_gemm": False,
        "turbo_deepep_num_cu": 32,
        "turbo_sync_free_moe_stage": 0,
        "use_turbo_rms_norm": False,
    }
    assert {name: params[name]["value"] for name in documented} == documented


def test_a_switch_that_is_gone_is_refused_with_its_successor(primus):
    Path("gone.yaml").write_text(BRIDGE + "      use_turbo_grouped_mlp: true\n")
    outcome = primus("config", "validate", "gone.yaml")
    assert outcome.code == 2
    assert "use_turbo_grouped_mlp has been removed; please use use_turbo_grouped_gemm instead" in outcome.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["packed_sequence: true", "micro_batch_size: 2"],
            "packed_sequence true (b.yaml:12 as packed_sequence) goes with micro_batch_size 1, and it is 2 (b.yaml:13): "
            "set micro_batch_size: 1, which gives the same losses.",
        ),
        (["stage: sftt"], "stage sftt (b.yaml:12) must be one of sft, pretrain, null."),
        (["stage: grpo"], "stage grpo (b.yaml:12) is not built: there are sft, on rows, and pretrain, on indexed files."),
        (
            ["stage: pretrain"],
            "stage pretrain (b.yaml:12) trains on documents, but flavor vanilla_gpt_finetune_config fine-tunes on rows: choose "
            "config: sft_trainer.yaml, or a flavor that does so.",
        ),
        (["peft_target_modules: [linear_foo]"], "'linear_foo' names no linear of the model"),
        (
            ["start_weight_decay: 0.1", "end_weight_decay: 0.2"],
            "scheduler.start_weight_decay 0.1 (b.yaml:12) and scheduler.end_weight_decay 0.2 (b.yaml:13) differ",
        ),
        (["use_turbo_parallel_linear: true"], "use_turbo_gemm true (b.yaml:12 as use_turbo_parallel_linear) has no effect"),
        (["precision_config: bf16_mixd"], "precision_config bf16_mixd is not known. Did you mean bf16_mixed? (b.yaml:12"),
        (["pipeline_dtype: fp16"], "pipeline_dtype fp16 (b.yaml:12) must be "),
        (["scheduler: {lr_decay_style: foo}"], "lr_decay_style foo (b.yaml:12 as scheduler.lr_decay_style) must be one of"),
        (["train_iters: 2", "train_samples: 3"], "but train_samples 3 (b.yaml:13) counts samples"),
        (
            ["model: {seq_length: 64}", "dataset: {seq_length: 32}"],
            "dataset.seq_length 32 (b.yaml:13 as dataset.seq_length) and model.seq_length 64 (b.yaml:12 as model.seq_length) "
            "differ: set seq_length, which is both.",
        ),
        (
            ["rerun_state_machine: {check_for_nan_in_loss: false}"],
            "ddp.check_for_nan_in_grad true (recipe gpt.vanilla_gpt) differ, but losses and gradients are looked at together",
        ),
        (
            ["scheduler: {no_weight_decay_cond_type: foo}"],
            "scheduler.no_weight_decay_cond_type foo (b.yaml:12 as scheduler.no_weight_decay_cond_type) must be qwen3_next",
        ),
        (
            ["model: {gated_linear_unit: false}"],
            "model.activation_func silu with model.gated_linear_unit false is not known; with that there are gelu, gelu_tanh, "
            "squared_relu (b.yaml:12 as model.gated_linear_unit).",
        ),
        (
            ["overlap_grad_reduce: true", "comm_overlap_config: {overlap_grad_reduce: false}"],
            "comm_overlap.overlap_grad_reduce false (b.yaml:13 as comm_overlap_config.overlap_grad_reduce) and "
            "ddp.overlap_grad_reduce true (b.yaml:12) are two names of one thing, and differ",
        ),
        (
            ["eval_iters: 3", "validation: {eval_iters: 4}"],
            "validation.eval_iters 4 (b.yaml:13 as validation.eval_iters) and train.eval_iters 3 (b.yaml:12) are two names",
        ),
        (
            ["validation: {eval_global_batch_size: 3}"],
            "must be global_batch_size, or null: evaluation takes the batches of training.",
        ),
        (
            ["validation: {start_eval_at_iter: 3}"],
            "validation.start_eval_at_iter 3 (b.yaml:12 as validation.start_eval_at_iter) is",
        ),
        (["validation: {multiple_validation_sets: true}"], "is of documents: rows have one validation set."),
        (
            ["no_save_optim: false", "checkpoint: {save_optim: false}"],
            "no_save_optim false (b.yaml:12) is also what a field says, and that comes to true (b.yaml:13",
        ),
        (["comm_overlap_config: {overlap_grad_redu: true}"], "Did you mean overlap_grad_reduce"),
        (
            ["comm_overlap_config: {bucket_size: big}"],
            "comm_overlap_config.bucket_size big (b.yaml:12) must be an integer or null.",
        ),
        (
            ["comm_overlap_config: {tp_comm_overlap: true}"],
            "comm_overlap.tp_comm_overlap true (b.yaml:12 as comm_overlap_config.tp_comm_overlap) has no effect: it needs "
            "tensor_model_parallel_size of 2 or more and sequence_parallel: true (they are 1 and false).",
        ),
        (
            ["tokenizer: {vocab_size: 9}"],
            "tokenizer.vocab_size 9 (b.yaml:12 as tokenizer.vocab_size) has no effect: a tokenizer of",
        ),
        (
            ["dataset: {rewrite: true}"],
            "dataset.rewrite true (b.yaml:12 as dataset.rewrite) has no effect: rows are read where",
        ),
        (["dataset: {hf_kwargs: {a: 1}}"], "(b.yaml:12 as dataset.hf_kwargs.a) is not implemented yet"),
        (
            ["dataset: {packed_sequence_specs: {pad_cu_seqlens: true}}"],
            "dataset.packed_sequence_specs.pad_cu_seqlens) has no effect: nothing is packed; set packed_sequence: true.",
        ),
        (
            ["dataset: {dataset_kwargs: {add_bos: yes please}}"],
            "dataset.dataset_kwargs.add_bos yes please (b.yaml:12 as dataset.dataset_kwargs.add_bos) must be true or false.",
        ),
        (
            ["dataset: {dataset_kwargs: {use_hf_tokenizer_chat_template: false}}"],
            "written by the tokenizer's chat template, or by dataset.dataset_kwargs.chat_template; leave it out.",
        ),
        (
            ["dataset: {dataset_kwargs: {tool_schemas: '{bad'}}"],
            "tool_schemas {bad (b.yaml:12 as dataset.dataset_kwargs.tool_schemas) must be a list of schemas, or text that",
        ),
        (
            ["dataset: {dataset_name: gsm8k, dataset_root: hf}"],
            "dataset.dataset_name gsm8k (b.yaml:12 as dataset.dataset_name) and dataset.dataset_root hf (b.yaml:12 as "
            "dataset.dataset_root) both say where rows are: keep one of them.",
        ),
        (["dataset: {seed: -1}"], "dataset.seed -1 (b.yaml:12 as dataset.seed) must be at least 0."),
        (["dataset: {max_train_samples: 0}"], "dataset.max_train_samples) must be at least 1; null takes all rows."),
        (["dataset: {val_proportion: 1.5}"], "dataset.val_proportion) must be above 0 and below 1; do_validation"),
        (
            ["apply_rope_fusion: true"],
            "apply_rope_fusion true (b.yaml:12) has no effect: performance hint",
        ),
    ],
)
def test_validate_holds_what_a_user_wrote_against_the_recipe(primus, lines, said):
    Path("hf").mkdir()
    Path("b.yaml").write_text(BRIDGE + "".join(f"      {line}\n" for line in [*lines, "hf_path: hf"]))
    assert said in primus("config", "validate", "b.yaml").err


@pytest.mark.parametrize(("line", "code"), [("", 0), ("overlap_param_gather: true", 2)])
def test_a_recipes_overlap_is_for_runs_that_divide_the_optimizer(primus, line, code):
    names = ("framework: megatron_bridge", "config: pretrain_trainer.yaml", "model: vanilla_gpt.yaml", "overrides:")
    words = ("flavor: vanilla_gpt_pretrain_config", "use_null_tokenizer: true", "use_distributed_optimizer: false")
    lines = [*(f"    {name}" for name in names), *(f"      {word}" for word in filter(None, (*words, line)))]
    Path("p.yaml").write_text("\n".join(["modules:", "  pre_trainer:", *lines, ""]))
    assert primus("config", "validate", "p.yaml").code == code


def test_fine_tuning_starts_from_weights(primus, bridge):
    place = "set hf_path to a Hugging Face folder or name, or pretrained_checkpoint (recipe gpt.vanilla_gpt)."
    assert f"adapters need the weights that they adapt: {place}" in primus("config", "validate", bridge).err
    Path(bridge).write_text(BRIDGE.replace("peft: lora", "peft: none").replace("      peft_dim: 3\n", ""))
    assert f"fine-tuning starts from weights: {place}" in primus("config", "validate", bridge).err


def test_an_experiment_that_is_right(primus, bridge):
    Path("hf").mkdir()
    Path("right.yaml").write_text(BRIDGE + "      hf_path: hf\n")
    outcome = primus("config", "validate", "right.yaml")
    assert (outcome.code, outcome.out) == (0, "right.yaml: ok (post_trainer: 24 keys, 1 rank)\n"), outcome.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["precision_config: bf16"], "precision_config bf16 is not known. Did you mean bf16_mixed? (b.yaml:12"),
        (["precision_config: fp8"], "precision_config fp8 is not known. There are bf16_mixed, fp16_mixed and fp32. (b.yaml:12"),
        (
            ["use_megatron_fsdp: true", "use_distributed_optimizer: false"],
            "use_distributed_optimizer false (b.yaml:13) becomes true: data_parallel_sharding_strategy "
            "optim_grads_params (b.yaml:12",
        ),
        (["precision_config: bf16_mixed", "model: {bf16: false}"], "model.bf16 false (b.yaml:13 as model.bf16) must be true"),
        (
            ["optimizer: {params_dtype: bf16}"],
            "must be fp32: precision_config (recipe gpt.vanilla_gpt) says so; set precision_config",
        ),
        (
            ["optimizer: {loss_scale: 8}"],
            "must be null: precision_config (recipe gpt.vanilla_gpt) says so; set mixed_precision.loss",
        ),
        (["ddp: {grad_reduce_in_fp32: false}"], "says so; set mixed_precision.grad_reduce_in_fp32 instead."),
        (
            ["precision_config: {fp32: true, bf16: true}"],
            "has fp32 and bf16 both true (b.yaml:12 as precision_config.fp32): one of them is the dtype of weights; set "
            "precision_config: bf16_mixed for one.",
        ),
        (["precision_config: {bf16: perhaps}"], "precision_config.bf16 perhaps (b.yaml:12) must be true or false."),
        (["mixed_precision: null", "model: {bf16: true}", "optimizer: {bf16: false}"], "optimizer.bf16 false"),
        (
            ["mixed_precision: {fp8_dot_product_attention: true}"],
            "8-bit precision is not built; choose bf16_mixed, fp16_mixed or",
        ),
        (["mixed_precision: {fp4_param_gather: true}"], "4-bit precision is not built; choose bf16_mixed, fp16_mixed or fp32."),
        (["mixed_precision: {grad_reduce_in_fp32: false}"], "has no effect: gradients of fp32 weights are summed in fp32."),
        (["mixed_precision: {autocast_enabled: true}"], "has no effect: weights have the dtype that they compute in."),
        *(
            (
                [f"precision_config: {name}"],
                f"error: precision_config {name} (b.yaml:12 as precision_config) is not implemented yet: it computes in {bits} "
                "bits; set bf16_mixed, fp16_mixed or fp32.\n",
            )
            for name, bits in (
                ("bf16_with_fp8_delayed_scaling_mixed", 8),
                ("bf16-with-fp8-current-scaling-mixed", 8),
                ("fp16_with_fp8_subchannel_scaling_mixed", 8),
                ("bf16_with_mxfp8_mixed", 8),
                ("bf16_with_nvfp4_mixed", 4),
            )
        ),
    ],
)
def test_what_precision_cannot_be(primus, lines, said):
    Path("hf").mkdir()
    text = BRIDGE.replace("optimizer: {adam_eps: 1}", "seed: 3")
    Path("b.yaml").write_text(text + "".join(f"      {line}\n" for line in [*lines, "hf_path: hf"]))
    assert said in primus("config", "validate", "b.yaml").err
