"""Latent attention equals Megatron-Core's, in models built from their flat keys."""

from pathlib import Path

import pytest
from oracle import check_model, model_of, read

from primus.engine.model.mla import LatentAttention

DATA = Path(__file__).parents[2] / "data" / "mla"
CASES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_as_megatron_core(name: str, tmp_path: Path) -> None:
    case, tensors = read(DATA, name)
    model = model_of(tmp_path, case)
    check_model(model, case, tensors)
    assert all(isinstance(layer.self_attention, LatentAttention) for _, layer in model.decoder.numbered())
