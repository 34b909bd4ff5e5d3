"""`primus config recipes`: what there is to name."""

import json

from primus.backends.megatron_bridge.recipes import flavors_of, recipe_names


def test_recipes_lists_every_flavor_with_its_arguments(primus):
    outcome = primus("config", "recipes", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert {recipe: list(flavors) for recipe, flavors in told["recipes"].items()} == {
        recipe: list(flavors_of(recipe)) for recipe in recipe_names()
    }
    assert told["recipes"]["qwen.qwen3"]["qwen3_8b_finetune_config"]["train_iters"] == 1000
    assert "vision-language" in told["refused"]["qwen_vl.qwen25_vl"]


def test_recipes_tells_what_a_flavor_takes_and_what_null_comes_to(primus):
    lines = primus("config", "recipes", "llama31_70b_finetune_config").out.splitlines()
    told = {words[0]: words[1].strip() for line in lines[1:] if (words := line.split(maxsplit=1))}
    assert told["train_iters"] == "1000"
    assert told["pipeline_model_parallel_size"] == "null: 1 with adapters, 4 without"
    assert told["hf_path"] == "null: meta-llama/Meta-Llama-3.1-70B"


def test_unknown_name_is_answered_with_the_nearest(primus):
    outcome = primus("config", "recipes", "qwen3_8")
    assert outcome.code == 2
    assert "qwen3_8 is neither a recipe nor a flavor. Did you mean qwen3_8b_" in outcome.err


def test_a_recipe_that_is_not_run_is_answered_with_the_reason(primus):
    outcome = primus("config", "recipes", "gemma.gemma2")
    assert outcome.code == 2
    assert "recipe gemma.gemma2 is not run by this engine: Gemma multiplies embeddings" in outcome.err
