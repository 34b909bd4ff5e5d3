"""Folders of Hugging Face models in tests: recorded ones, fresh ones, and models of ours with their weights."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from primus.engine.checkpoint.hf.exchange import import_hf
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.read import model_in
from primus.engine.checkpoint.load import load_weights
from primus.engine.config.model import ModelConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import buffer_shards, global_parameters, weight_shards

__all__ = ["RECORDED", "config_of", "imported", "logits", "model_from", "tensors"]

RECORDED = Path(__file__).parents[2] / "data" / "hf"


def config_of(folder: Path) -> ModelConfig:
    """Return the model of a folder."""
    return model_in(folder)[1]


def imported(source: Path, out: Path) -> Path:
    """Import a folder and return the checkpoint."""
    with new_folder(out) as folder:
        import_hf(source, folder)
    return out


def model_from(checkpoint: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> GPTModel:
    """Return the model of an imported checkpoint."""
    mesh = single_mesh()
    (model,) = build_model(
        replace(config, seq_length=64),
        mesh=mesh,
        dtype=dtype,
        device="cpu",
        seed=1,
        streams=RandomStreams(1, mesh.coordinates),
    )
    shards = {**weight_shards(global_parameters([model]), mesh), **buffer_shards([model])}
    load_weights(checkpoint / "release", shards, mesh=mesh)
    return model.eval()


@torch.no_grad()
def logits(model: GPTModel, ids_BS: Tensor) -> Tensor:
    """Return logits [B, S, V]."""
    return model(ids_BS, torch.arange(ids_BS.shape[1]).expand_as(ids_BS))  # type: ignore[no-any-return]


def tensors(folder: Path) -> Mapping[str, Tensor]:
    """Return all tensors of a folder."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
