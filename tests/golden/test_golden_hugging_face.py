"""From a Hugging Face folder through a divided run and out again: the preset beside a checkpoint makes the model it holds."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ranks import run_ranks
from runs import TINY, train_rank
from safetensors.torch import load_file, save_file

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.model_preset import overridden_keys, preset_text
from primus.core.experiment import load_experiment
from primus.engine.checkpoint.hf.describe import described
from primus.engine.checkpoint.hf.exchange import export_hf, import_hf
from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.read import model_in, read_config
from primus.engine.config import ConfigContainer
from primus.engine.config.model import ModelConfig

RECORDED = Path(__file__).parents[1] / "data" / "hf"
NAMES = ["llama", "llama3_rope", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]
_OF_THE_MODEL = {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings"}
_OF_THE_MODEL |= {"normalization", "position_embedding_type"}


def container(folder: Path, model: ModelConfig, ranks: int, **keys: Any) -> ConfigContainer:
    """Return the container of the tiny experiment, whose model is the preset of another one."""
    (folder / "model.yaml").write_text(preset_text(model, opening="A model", tokenizer=None))
    assert model.vocab_size is not None
    own = {"vocab_size": model.vocab_size - 1, "sequence_parallel": True, **overridden_keys(model)}
    return of_preset(folder, "model.yaml", ranks, **own, **keys)


def of_preset(folder: Path, preset: str, ranks: int, **keys: Any) -> ConfigContainer:
    """Return the container of the tiny experiment with the model of a preset."""
    overrides = {key: value for key, value in TINY.items() if key not in _OF_THE_MODEL} | keys
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": preset, "overrides": overrides}
    experiment = {"work_group": "g", "user_name": "u", "exp_name": "e", "workspace": str(folder)}
    (folder / "exp.yaml").write_text(yaml.safe_dump({**experiment, "modules": {"pre_trainer": module}}))
    loaded = load_experiment(folder / "exp.yaml", [], {})
    return MegatronArgBuilder(loaded, loaded.modules["pre_trainer"], ranks, folder / "run").build().config


def with_prediction_layer(folder: Path) -> Path:
    """Return a copy of the recorded DeepSeek-V3 with a layer behind the last that predicts a further token."""
    shutil.copytree(RECORDED / "deepseek_v3", folder)
    held = load_file(folder / "model.safetensors")
    torch.manual_seed(5)
    last = {name: tensor for name, tensor in held.items() if name.startswith("model.layers.2.")}
    new = {name.replace("layers.2", "layers.3"): torch.randn_like(tensor) for name, tensor in last.items()}
    h = held["model.norm.weight"].numel()
    new |= {f"model.layers.3.{name}.weight": torch.randn(h) for name in ("enorm", "hnorm", "shared_head.norm")}
    new["model.layers.3.eh_proj.weight"] = torch.randn(h, 2 * h)
    new["model.layers.3.embed_tokens.weight"] = held["model.embed_tokens.weight"].clone()
    new["model.layers.3.shared_head.head.weight"] = held["lm_head.weight"].clone()
    save_file({**held, **new}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_preset_of_a_model_makes_the_model(name: str, tmp_path: Path) -> None:
    _, model = model_in(RECORDED / name)
    assert differences(container(tmp_path, model, 1).model, model) == []


@pytest.mark.parametrize(
    ("preset", "family"),
    [
        ("llama3.1_8B", "llama"),
        ("qwen3_tiny", "qwen3"),
        ("mixtral_8x7B_v0.1", "mixtral"),
        ("qwen3_30B_A3B", "qwen3_moe"),
        ("deepseek_v3", "deepseek_v3"),
        ("kimi_k2", "deepseek_v3"),
    ],
)
def test_presets_are_of_families(preset: str, family: str, tmp_path: Path) -> None:
    """What a preset says of training, such as its grouped products, keeps no model from going out."""
    model = of_preset(tmp_path, f"{preset}.yaml", 8, max_position_embeddings=4096, moe_grouped_gemm=True).model
    assert described(replace(model, vocab_size=1000), "bfloat16")[0] == family


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("qwen2", {"tensor_model_parallel_size": 2, "make_vocab_size_divisible_by": 96}),
        ("qwen3_moe", {"expert_model_parallel_size": 2}),
        ("deepseek_v3", {"pipeline_model_parallel_size": 2, "decoder_first_pipeline_num_layers": 2}),
    ],
)
def test_weights_that_no_step_changes_come_out_as_they_went_in(name: str, layout: dict[str, Any], tmp_path: Path) -> None:
    """Padded rows of the vocabulary stay behind; prediction layers come and go with their copies of embedding and head."""
    source = with_prediction_layer(tmp_path / "hf") if name == "deepseek_v3" else RECORDED / name
    with new_folder(tmp_path / "ckpt") as folder:
        import_hf(source, folder)
    _, model = model_in(source)
    keys = {"train_iters": 1, "lr": 0.0, "min_lr": 0.0, "weight_decay": 0.0, "moe_router_bias_update_rate": 0.0}
    paths = {"pretrained_checkpoint": str(tmp_path / "ckpt"), "save": str(tmp_path / "saved"), "save_interval": 1}
    run_ranks(train_rank, 2, container(tmp_path, model, 2, **layout, **keys, **paths))
    with new_folder(tmp_path / "out") as folder:
        export_hf(tmp_path / "saved", folder, original=source)
    before, after = (load_file(each / "model.safetensors") for each in (source, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[each], after[each]) for each in before)
    assert read_config(tmp_path / "out") == read_config(source)
