"""Which function `recipe` and `flavor` name: ours, an installed Megatron-Bridge's, or the user's own."""

import sys
import textwrap
from pathlib import Path

import pytest

from primus.backends.megatron_bridge.config_utils import load_recipe_config
from primus.backends.megatron_bridge.container import ConfigContainer, DoRA, LoRA
from primus.backends.megatron_bridge.recipes import arguments_of, built, find_flavor, flavors_of, recipe_names
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.backends.megatron_bridge.translate.validation import validation_values
from primus.errors import ConfigError


def refusal(recipe: str, flavor: str) -> str:
    with pytest.raises(ConfigError) as refused:
        built(find_flavor(recipe, flavor), {}, name=flavor)
    return str(refused.value)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a module where Python finds it; it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write_module(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    yield write_module
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("megatron", "own_recipes"):
            del sys.modules[name]


# -- names


@pytest.mark.parametrize(
    ("recipe", "flavor"),
    [
        ("llama.llama3", "llama31_70b_finetune_config"),
        ("primus.backends.megatron_bridge.recipes.llama.llama2", "llama2_7b_sft_config"),
    ],
)
def test_recipe_is_found_by_its_short_and_by_its_whole_name(recipe: str, flavor: str):
    assert isinstance(built(find_flavor(recipe, flavor), {}, name=flavor), ConfigContainer)


def test_every_model_has_flavors_of_all_kinds():
    kinds = ("pretrain_config", "finetune_config", "sft_config", "peft_config")
    for recipe in recipe_names():
        names = [name for name in flavors_of(recipe) if name.endswith("_finetune_config")]
        stems = [name.removesuffix("finetune_config") for name in names]
        assert {f"{stem}{kind}" for stem in stems for kind in kinds} <= set(flavors_of(recipe))


def test_documented_families_are_there():
    assert {"llama.llama2", "llama.llama3", "qwen.qwen2", "qwen.qwen3", "qwen.qwen3_moe", "gpt_oss.gpt_oss"} <= set(
        recipe_names()
    )
    assert {"deepseek.deepseek_v2", "deepseek.deepseek_v3", "mixtral.mixtral", "gpt.vanilla_gpt", "auto"} <= set(recipe_names())


def test_unknown_recipe_is_refused_with_what_was_tried_and_the_nearest():
    message = refusal("qwen.qwen33", "x")
    assert message.startswith(
        "recipe qwen.qwen33: there is no module primus.backends.megatron_bridge.recipes.qwen.qwen33, megatron."
    )
    assert "Did you mean qwen.qwen3" in message
    assert "Did you mean llama.llama3" in refusal("llama3", "x")


def test_unknown_flavor_is_refused_with_the_nearest():
    message = refusal("qwen.qwen3", "qwen3_8_finetune_config")
    assert message.startswith(
        "flavor qwen3_8_finetune_config: recipe qwen.qwen3 has none of that name. Did you mean qwen3_8b_finetune_config"
    )


@pytest.mark.parametrize(
    ("recipe", "flavor", "why"),
    [
        ("gemma.gemma2", "gemma2_2b_finetune_config", "Gemma multiplies embeddings"),
        ("qwen_vl.qwen25_vl", "qwen25_vl_7b_finetune_config", "vision-language recipe"),
        ("llama.llama2", "llama2_70b_lora_mxfp4_config", "llama2_70b_peft_config trains the same adapters in bf16"),
        ("primus.backends.megatron_bridge.recipes.llama.llama2", "llama2_70b_lora_mxfp4_config", "FP8 or FP4"),
    ],
)
def test_recipes_that_the_engine_does_not_run_are_refused_with_the_reason(recipe: str, flavor: str, why: str):
    message = refusal(recipe, flavor)
    assert message.startswith(f"recipe {recipe}, flavor {flavor}: ")
    assert why in message


# -- the user's own


OWN = """
    from primus.backends.megatron_bridge.container import ConfigContainer
    from primus.backends.megatron_bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_finetune_config

    def small_finetune_config(*, train_iters: int = 3) -> ConfigContainer:
        return vanilla_gpt_finetune_config(train_iters=train_iters)

    def needs_finetune_config(*, depth: int) -> ConfigContainer: ...

    def wrong_finetune_config():
        return 3
"""


def test_recipe_of_ones_own_is_a_module_with_functions(write):
    write("own_recipes.py", OWN)
    assert built(find_flavor("own_recipes", "small_finetune_config"), {"train_iters": 5}, name="x").train.train_iters == 5
    assert "Did you mean small_finetune_config?" in refusal("own_recipes", "smal_finetune_config")
    assert refusal("own_recipes", "needs_finetune_config") == "needs_finetune_config needs depth; set it beside the flavor"
    assert "returned a int" in refusal("own_recipes", "wrong_finetune_config")
    with pytest.raises(ConfigError, match="takes no argument lr; it takes train_iters"):
        built(find_flavor("own_recipes", "small_finetune_config"), {"lr": 1}, name="small")


def test_adapters_of_a_flavor_that_takes_none_can_be_cleared(write):
    write("own_recipes.py", OWN)
    words = {"recipe": "own_recipes", "flavor": "small_finetune_config"}
    assert isinstance(load_recipe_config(words).peft, LoRA)
    assert load_recipe_config({**words, "peft": "none"}).peft is None
    assert load_recipe_config({**words, "peft": None}).peft is None


STARRED = """
    from typing import TypedDict, Unpack
    from primus.backends.megatron_bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_finetune_config

    class Arguments(TypedDict, total=False):
        train_iters: int
        idea: bool

    def typed_config(idea=False, **given: Unpack[Arguments]):
        return vanilla_gpt_finetune_config(**given)

    def open_config(*others, **given):
        return vanilla_gpt_finetune_config(**given)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.Unpack")
def test_what_stars_take_is_what_their_type_names_or_all_that_flavors_take(write):
    write("own_recipes.py", STARRED)
    assert list(arguments_of(find_flavor("own_recipes", "typed_config"))) == ["idea", "train_iters"]
    taken = arguments_of(find_flavor("own_recipes", "open_config"))
    assert {"peft", "hf_path", "packed_sequence", "finetune_lr", "data_paths"} <= set(taken)
    words = {"recipe": "own_recipes", "flavor": "open_config", "peft": "dora", "peft_dim": 3, "train_iters": None}
    config = load_recipe_config(words)
    assert (type(config.peft), config.peft.dim, config.train.train_iters) == (DoRA, 3, 20)


MISSET = """
    from primus.backends.megatron_bridge.recipes.gpt.vanilla_gpt import vanilla_gpt_finetune_config

    def x():
        config = vanilla_gpt_finetune_config(peft="lora")
        {}
        return config
"""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("config.scheduler.lr_warmup_iter = 2", "scheduler.lr_warmup_iter 2, which is not known: SchedulerConfig has no field"),
        ("config.train.train_iters = 5.5", "train.train_iters 5.5, which must be an integer or null."),
        ("config.peft.dim = 'x'", "peft.dim x, which must be an integer."),
        ("config.dataset.dataset_kwargs = [1]", "dataset.dataset_kwargs [1], which must be a map or null."),
        (
            "config.dataset = {'dataset_root': 'r'}",
            "dataset {'dataset_root': 'r'}, which has dataset_root r, which is not known",
        ),
        ("config.model = None", "model null, which must be ModelProvider."),
        ("config.optimizer.lr = print", "optimizer.lr a builtin_function_or_method, which must be a number or null."),
    ],
)
def test_what_a_recipe_of_ones_own_sets_wrongly_is_told_by_its_field(write, line: str, why: str):
    write("own_recipes.py", textwrap.dedent(MISSET).format(line))
    assert refusal("own_recipes", "x").startswith(f"x sets {why}")


def test_what_a_recipe_of_ones_own_sets_is_read_as_words_are(write):
    lines = (
        "config.train.train_iters = '5'",
        "config.optimizer = {'lr': 1}",
        "config.peft.target_modules = ('linear_qkv',)",
        "config.comm_overlap = {'bucket_size': 3}",
    )
    write("own_recipes.py", textwrap.dedent(MISSET).format("; ".join(lines)))
    config = built(find_flavor("own_recipes", "x"), {}, name="x")
    assert (config.train.train_iters, config.optimizer.lr, config.comm_overlap.bucket_size) == (5, 1.0, 3)
    assert config.peft.target_modules == ["linear_qkv"]


def test_module_that_cannot_be_imported_says_why(write):
    write("own_recipes.py", "import no_such_library")
    assert refusal("own_recipes", "x") == "recipe own_recipes cannot be imported: No module named 'no_such_library'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:", "cannot be imported: invalid syntax (__init__.py, line 1)"),
        ("x = {}['depth']", "cannot be imported: KeyError: 'depth' ("),
        ("def x(): raise ValueError('no depth')", "x failed: ValueError: no depth ("),
        ("def x(): raise SystemExit(3)", "x failed: SystemExit: 3 ("),
    ],
)
def test_mistakes_in_a_recipe_of_ones_own_are_told_with_their_place(write, text: str, why: str):
    write("own_recipes/__init__.py", text)
    message = refusal("own_recipes", "x")
    assert why in message
    assert "__init__.py" in message


@pytest.mark.parametrize("recipe", [".", "..qwen", "qwen.qwen3.", "../x", "qwen qwen3"])
def test_words_that_are_no_module_name_are_refused(recipe: str):
    assert refusal(recipe, "x").startswith(f"recipe {recipe}: there is no module ")


# -- an installed Megatron-Bridge


THEIRS = """
    from dataclasses import dataclass, field
    from enum import Enum

    @dataclass
    class TrainingConfig:
        train_iters: int = 10
        global_batch_size: int = 4
        micro_batch_size: int = 1
        eval_iters: object = None
        skip_train: object = None
        fresh_idea: bool = False

    @dataclass
    class Provider:
        num_layers: int = 2
        hidden_size: int = 64
        activation_func: object = None
        params_dtype: object = None
        attention_backend: object = None
        generation_config: object = None

    @dataclass
    class Plain:
        lr: float = 1e-3
        min_lr: float = 0.0

    @dataclass
    class Scheduler:
        lr_warmup_iters: int = 2

    @dataclass
    class Dataset:
        seq_length: int = 32
        dataset_name: str = "squad"
        val_proportion: float = 0.1
        process_example_fn: object = print

    @dataclass
    class Logger:
        log_interval: int = 1

    @dataclass
    class Tokenizer:
        tokenizer_model: str = "t"

    @dataclass
    class Checkpoint:
        save_interval: int = 5

    @dataclass
    class ValidationConfig:
        eval_iters: int = 100
        skip_train: bool = False

    @dataclass
    class LoRA:
        dim: int = 4
        alpha: int = 8
        target_modules: list = field(default_factory=lambda: ["linear_qkv"])

    @dataclass
    class ConfigContainer:
        train: object
        model: object
        optimizer: object
        scheduler: object
        dataset: object
        logger: object
        tokenizer: object
        checkpoint: object
        peft: object = None
        mixed_precision: object = "bf16_mixed"
        validation: object = field(default_factory=lambda: ValidationConfig(eval_iters=7))

    class AttnBackend(Enum):
        fused = 2

    class bfloat16:
        def __repr__(self):
            return "torch.bfloat16"

    def silu(x):
        return x

    def new_9b_finetune_config(*, train_iters=10, idea=False, peft=True):
        return ConfigContainer(
            TrainingConfig(train_iters=train_iters, fresh_idea=idea),
            Provider(
                activation_func=silu, params_dtype=bfloat16(), attention_backend=AttnBackend.fused, generation_config=object()
            ),
            Plain(), Scheduler(), Dataset(), Logger(), Tokenizer(), Checkpoint(), LoRA() if peft else None,
        )
"""


@pytest.fixture
def installed(write):
    for folder in ("megatron", "megatron/bridge", "megatron/bridge/recipes", "megatron/bridge/recipes/new"):
        write(f"{folder}/__init__.py", "")
    write("megatron/bridge/recipes/new/new9.py", THEIRS)


def test_recipe_of_an_installed_bridge_is_translated_by_names(installed):
    config = built(find_flavor("new.new9", "new_9b_finetune_config"), {"train_iters": 7}, name="new")
    assert (config.train.train_iters, config.model.hidden_size, config.optimizer.lr) == (7, 64, 1e-3)
    assert (config.model.activation_func, config.model.params_dtype) == ("silu", "bf16")
    assert (config.model.attention_backend, config.model.generation_config) == ("fused", None)
    assert (config.dataset.dataset_name, config.mixed_precision) == ("squad", "bf16_mixed")
    assert (type(config.peft), config.peft.dim, config.peft.target_modules) == (LoRA, 4, ["linear_qkv"])


def test_newer_container_says_apart_how_it_evaluates(installed):
    config = built(find_flavor("new.new9", "new_9b_finetune_config"), {}, name="new")
    raw = Raw(config=config, sources={}, recipe="new.new9")
    values = validation_values(raw, problems := [])
    assert (values["eval_iters"].value, values["skip_train"].value, problems) == (7, False, [])
    config.train.eval_iters = 3
    raw = Raw(config=config, sources={"train.eval_iters": "exp.yaml:3"}, recipe="new.new9")
    assert validation_values(raw, problems)["eval_iters"].value == 3, "the user's word goes before the recipe's"


def test_value_that_has_no_place_here_refuses_the_recipe_by_the_fields_name(installed):
    with pytest.raises(ConfigError) as refused:
        built(find_flavor("new.new9", "new_9b_finetune_config"), {"idea": True}, name="new")
    assert str(refused.value) == (
        "recipe megatron.bridge.recipes.new.new9: train.fresh_idea is True, and this engine has no such field"
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "env_vars = {'A': 'b'}",
            "recipe megatron.bridge.recipes.new.odd: env_vars is {'A': 'b'}, and this engine has no such field",
        ),
        ("train = 3", "x sets train 3, which must be a map."),
        ("train.idea = 3", "recipe megatron.bridge.recipes.new.odd: train.idea is 3, and this engine has no such field"),
    ],
)
def test_parts_that_are_none_of_theirs_are_told(installed, write, line: str, why: str):
    parts = "train model optimizer scheduler dataset logger tokenizer checkpoint"
    lines = ("from types import SimpleNamespace as S", "def x():", f" c = S(**{{n: S() for n in '{parts}'.split()}})")
    write("megatron/bridge/recipes/new/odd.py", "\n".join((*lines, f" c.{line}", " return c")))
    assert refusal("new.odd", "x") == why


def test_recipe_of_ours_goes_before_an_installed_one(installed, write):
    write("megatron/bridge/recipes/gpt/vanilla_gpt.py", "def vanilla_gpt_finetune_config(): return None")
    assert isinstance(built(find_flavor("gpt.vanilla_gpt", "vanilla_gpt_finetune_config"), {}, name="x"), ConfigContainer)
