"""The tiny experiment with the model and the weights of a recorded Hugging Face folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ranks import run_ranks
from runs import TINY, train_rank

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.model_preset import overridden_keys, preset_text
from primus.core.experiment import load_experiment
from primus.engine.checkpoint.hf.read import model_in
from primus.engine.config import ConfigContainer

__all__ = ["RECORDED", "hf_container", "losses"]

RECORDED = Path(__file__).parent / "data" / "hf"
_OF_THE_MODEL = {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings"}
_OF_THE_MODEL |= {"normalization", "position_embedding_type"}


def hf_container(folder: Path, source: Path, ranks: int, exp_name: str, **keys: Any) -> ConfigContainer:
    """Return the tiny experiment with the model of a folder, which starts from the folder's weights."""
    _, model = model_in(source)
    assert model.vocab_size is not None
    (folder / "model.yaml").write_text(preset_text(model, opening="A model", tokenizer=None))
    own = {"vocab_size": model.vocab_size - 1, "sequence_parallel": True, "train_iters": 2, **overridden_keys(model)}
    overrides = {key: value for key, value in TINY.items() if key not in _OF_THE_MODEL} | own | keys
    module = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "model.yaml", "overrides": overrides}
    experiment = {"work_group": "g", "user_name": "u", "exp_name": exp_name, "workspace": str(folder)}
    (folder / "exp.yaml").write_text(yaml.safe_dump({**experiment, "modules": {"pre_trainer": module}}))
    loaded = load_experiment(folder / "exp.yaml", [], {})
    config = MegatronArgBuilder(loaded, loaded.modules["pre_trainer"], ranks, folder / exp_name).build().config
    return replace(config, checkpoint=replace(config.checkpoint, hf_path=str(source)))


def losses(config: ConfigContainer, ranks: int) -> list[float]:
    run_ranks(train_rank, ranks, config)
    lines = (Path(config.run.folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["lm_loss"] for line in lines]
