"""Runs with adapters save these alone, resume bitwise, go on in another layout, and know the base that they belong to."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_runs import RECORDED, hf_container, losses
from ranks import run_ranks
from runs import logged_rank, train_rank
from safetensors.torch import load_file, save_file
from test_golden_layouts import in_float64

from primus.engine.checkpoint.fingerprint import fingerprint
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.peft_import import import_peft
from primus.engine.checkpoint.load import open_checkpoint
from primus.engine.config import ConfigContainer, PEFTConfig
from primus.engine.config.serialize import from_dict
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.sharding import Chunk, Shards

LORA = PEFTConfig(dim=4, alpha=8.0)
DORA = replace(LORA, scheme="dora")
CANONICAL = replace(LORA, scheme="canonical_lora", target_modules=("linear_q", "linear_v", "linear_fc1_up", "linear_fc2"))
ZERO3 = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}


def run(folder: Path, name: str, *, ranks: int = 1, peft: PEFTConfig = LORA, **keys: Any) -> ConfigContainer:
    """Return a run of four iterations with adapters on a recorded folder."""
    own = {"train_iters": 4, "lr": 1.0e-2, "save": str(folder / name / "saved"), "save_interval": 2}
    return replace(hf_container(folder, RECORDED / "llama", ranks, name, **{**own, **keys}), peft=peft)


def loading(config: ConfigContainer, **changes: Any) -> ConfigContainer:
    return replace(config, checkpoint=replace(config.checkpoint, **changes))


CASES: dict[str, tuple[PEFTConfig, dict[str, Any], dict[str, Any]]] = {
    "one process, dp2": (LORA, {}, {"use_distributed_optimizer": True}),
    "tp2, pp2": (LORA, {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}),
    "fsdp2, one process": (LORA, {"use_torch_fsdp2": True}, {}),
    # One of the ranks holds nothing of the weights that have an adapter.
    "zero3, pp2": (replace(DORA, target_modules=("*.layers.1.*.linear_qkv",)), ZERO3, {"pipeline_model_parallel_size": 2}),
    "torch, one process": (CANONICAL, {"ckpt_format": "torch", "use_distributed_optimizer": True}, {"ckpt_format": "torch"}),
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PEFTConfig], list[float]]:
    """Return the losses of one process that never stops."""
    known: dict[PEFTConfig, list[float]] = {}

    def of(peft: PEFTConfig) -> list[float]:
        if peft not in known:
            known[peft] = losses(in_float64(run(tmp_path_factory.mktemp("straight"), "run", peft=peft, save=None)), 1)
        return known[peft]

    return of


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_bitwise_and_in_any_layout(case: str, straight: Any, tmp_path: Path) -> None:
    peft, saving, other = CASES[case]

    def trained(name: str, layout: dict[str, Any], **changes: Any) -> list[float]:
        ranks = 2 if layout.keys() - {"ckpt_format"} else 1
        config = loading(in_float64(run(tmp_path, name, peft=peft, ranks=ranks, **layout)), **changes)
        return losses(config, ranks)

    whole, step = trained("whole", saving), {"load": str(tmp_path / "whole" / "saved"), "ckpt_step": 2, "save": None}
    assert whole == pytest.approx(straight(peft), rel=1e-12)
    assert whole[0] == pytest.approx(straight(LORA)[0], rel=1e-12), "the first loss is the base's, whatever the scheme"
    assert trained("same", saving, **step) == whole[2:]
    assert trained("other", other, **step) == pytest.approx(whole[2:], rel=1e-12)


def test_a_checkpoint_holds_adapters_alone(tmp_path: Path) -> None:
    run_ranks(train_rank, 1, run(tmp_path, "small"))
    source = open_checkpoint(tmp_path / "small" / "saved" / "iter_0000004", single_mesh(), None)
    names = set(source.shapes())
    assert all(".adapter.linear_" in name for name in names)
    assert {name for name in names if name.startswith("optimizer.state.exp_avg.")}
    base = source.common["base"]
    assert base["path"] == str(RECORDED / "llama")
    assert source.common["container"]["peft"]["dim"] == LORA.dim


def refused(config: ConfigContainer) -> str:
    with pytest.raises(AssertionError) as raised:
        run_ranks(train_rank, 1, config)
    return str(raised.value)


def test_adapters_of_another_base_are_refused(tmp_path: Path) -> None:
    run_ranks(train_rank, 1, run(tmp_path, "first", exit_interval=2))
    write_other_base(tmp_path / "hf")
    config = loading(run(tmp_path, "second"), load=str(tmp_path / "first" / "saved"), hf_path=str(tmp_path / "hf"))
    said = refused(config)
    assert f"belong to other base weights than this run has: they were trained on {RECORDED / 'llama'}" in said
    assert f"and {tmp_path / 'hf'} has" in said
    # The same weights elsewhere are the same base.
    save_file(load_file(RECORDED / "llama" / "model.safetensors"), tmp_path / "hf" / "model.safetensors")
    run_ranks(train_rank, 1, config)


def write_other_base(folder: Path) -> None:
    """Write the recorded Llama with one weight changed."""
    folder.mkdir()
    tensors = load_file(RECORDED / "llama" / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((RECORDED / "llama" / "config.json").read_text())


def test_imported_adapters_know_their_base(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In whatever dtype a run has it; imported without its weights, they know the first that they meet."""
    write_other_base(tmp_path / "hf")
    for name, base in (("known", RECORDED / "llama"), ("unknown", tmp_path / "bare")):
        if name == "unknown":
            base.mkdir()
            (base / "config.json").write_text((RECORDED / "llama" / "config.json").read_text())
        with new_folder(tmp_path / name) as folder:
            import_peft(RECORDED / "lora_llama", base, folder)
    assert "NOT recorded, which weights the adapters are for" in caplog.text
    peft = from_dict(json.loads((tmp_path / "known" / "peft.json").read_text()), PEFTConfig, "peft")

    def on(name: str, hf_path: Path, load: Path, **keys: Any) -> ConfigContainer:
        return loading(run(tmp_path, name, peft=peft, train_iters=1, **keys), load=str(load), hf_path=str(hf_path))

    for bf16 in (False, True):
        said = refused(on("other", tmp_path / "hf", tmp_path / "known", bf16=bf16))
        assert f"belong to other base weights than this run has: they were trained on {RECORDED / 'llama'} (" in said
    run_ranks(train_rank, 1, on("same", RECORDED / "llama", tmp_path / "known", bf16=True))
    run_ranks(train_rank, 1, on("first", tmp_path / "hf", tmp_path / "unknown", save_interval=1))
    said = refused(on("next", RECORDED / "llama", tmp_path / "first" / "saved"))
    assert f"they were trained on {tmp_path / 'hf'} (" in said


def test_adapters_of_another_kind_are_refused(tmp_path: Path) -> None:
    run_ranks(train_rank, 1, run(tmp_path, "first", exit_interval=2))
    load = {"load": str(tmp_path / "first" / "saved")}
    said = refused(loading(run(tmp_path, "second", peft=replace(LORA, dim=8, alpha=2.0)), **load))
    assert "peft.dim: the adapters in " in said
    assert "were trained with 4, the run says 8" in said
    assert "peft.alpha: the adapters in " in said
    fewer = replace(LORA, target_modules=("linear_qkv",))
    assert "and not in the run: " in refused(loading(run(tmp_path, "third", peft=fewer), **load))


def test_adapters_are_no_model_and_a_model_is_no_adapters(tmp_path: Path) -> None:
    run_ranks(train_rank, 1, run(tmp_path, "adapters", train_iters=2))
    whole = replace(run(tmp_path, "whole", train_iters=2), peft=None)
    said = refused(loading(whole, load=str(tmp_path / "adapters" / "saved")))
    assert f"holds only adapters (peft lora, trained on {RECORDED / 'llama'})" in said
    run_ranks(train_rank, 1, whole)
    said = refused(loading(run(tmp_path, "third"), load=str(tmp_path / "whole" / "saved")))
    assert (
        "holds all weights of a model and no adapters, which a run with peft resumes: give it as pretrained_checkpoint" in said
    )
    said = refused(loading(run(tmp_path, "as base"), pretrained_checkpoint=str(tmp_path / "adapters" / "saved")))
    assert ", and no weights to adapt: give it as load, and those as pretrained_checkpoint or hf_path" in said
    based = loading(run(tmp_path, "fourth", train_iters=1), pretrained_checkpoint=str(tmp_path / "whole" / "saved"))
    (text,) = run_ranks(logged_rank, 1, based)
    assert "whole/saved/iter_0000002 of iteration 2: weights" in text


def test_a_fingerprint_is_of_values_and_places() -> None:
    """However the tensor is cut; one bit, or two values in each other's place, are another one."""
    mesh = single_mesh()
    whole = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)

    def of(tensor: torch.Tensor, *bounds: int) -> str:
        ends = [0, *bounds, 5]
        chunks = [Chunk((0, low, 0), tensor[:, low:high]) for low, high in pairwise(ends)]
        return fingerprint({"w": Shards((3, 5, 4), tensor.dtype, chunks)}, mesh.world)

    assert of(whole) == of(whole, 2) == of(whole, 1, 4) == of(whole.float())
    changed, swapped = whole.clone(), whole.clone()
    changed[1, 2, 3] *= 1.01
    swapped[0] = whole[1]
    swapped[1] = whole[0]
    assert len({of(whole), of(changed), of(swapped)}) == 3


def test_large_tensors_are_taken_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = single_mesh()
    tensors = {"w": torch.randn(3, 7, 5), "v": torch.randn(11), "s": torch.tensor(2.0)}
    shards = {n: Shards(tuple(t.shape), t.dtype, [Chunk((0,) * t.dim(), t)]) for n, t in tensors.items()}
    expected = fingerprint(shards, mesh.world)
    for block in (3, 6, 12, 40):
        monkeypatch.setattr("primus.engine.checkpoint.fingerprint._BLOCK", block)
        assert fingerprint(shards, mesh.world) == expected


def test_a_run_without_a_base_adapts_random_weights_and_says_so(tmp_path: Path) -> None:
    config = loading(run(tmp_path, "random", train_iters=1), hf_path=None)
    (text,) = run_ranks(logged_rank, 1, config)
    assert "adapters stand beside random weights" in text
