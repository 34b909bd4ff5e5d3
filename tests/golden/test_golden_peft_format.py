"""Adapters that divided runs have trained go to the peft library and back, and into whole models, with equal logits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_runs import RECORDED, hf_container
from ranks import run_ranks
from runs import train_rank
from safetensors.torch import load_file, save_file
from torch import Tensor

from primus.engine.checkpoint.hf.exchange import export_hf
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.peft_export import export_peft
from primus.engine.checkpoint.hf.peft_import import import_peft
from primus.engine.checkpoint.load import open_checkpoint
from primus.engine.checkpoint.merged import whole
from primus.engine.config import ConfigContainer, PEFTConfig, serialize
from primus.engine.parallel.mesh import single_mesh
from primus.engine.train.sample import sample_run
from primus.errors import InputError

pytestmark = [
    # The library's own, of a name that transformers gave up.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    # It looks for these among modules only, and gives parameters their rank all the same.
    pytest.mark.filterwarnings("ignore:The following rank_pattern keys did not match any targeted module:RuntimeWarning"),
]
LORA = PEFTConfig(dim=4, alpha=8.0)
CANONICAL = replace(LORA, scheme="canonical_lora", target_modules=("linear_q", "linear_v", "linear_fc1_up", "linear_proj"))
DORA = replace(LORA, scheme="dora")
LAYER = replace(LORA, target_modules=("*.layers.1.*.linear_qkv", "linear_fc2"))
OWN = replace(LORA, share_expert_adapters=False)
NORMALIZED = replace(OWN, normalize_moe_lora=True, target_modules=("linear_proj", "*.layers.1.*.linear_fc1", "linear_fc2"))
PARTS_AND_EXPERTS = replace(OWN, scheme="canonical_lora", target_modules=("linear_q", "linear_v", "*.experts.*"))


def trained(folder: Path, name: str, peft: PEFTConfig, ranks: int = 1, **layout: Any) -> Path:
    """Return the checkpoints of a short run with adapters, which has moved B far from zero."""
    keys = {"train_iters": 2, "lr": 5.0e-2, "save": str(folder / "saved"), "save_interval": 2}
    config: ConfigContainer = replace(hf_container(folder, RECORDED / name, ranks, "tuned", **keys, **layout), peft=peft)
    run_ranks(train_rank, ranks, config)
    return folder / "saved"


@torch.no_grad()
def logits(model: Any) -> Tensor:
    ids = torch.arange(3, 35).view(2, 16)
    return model.eval()(ids).logits  # type: ignore[no-any-return]


def adapters(checkpoint: Path) -> dict[str, Tensor]:
    source = open_checkpoint(checkpoint, single_mesh(), None)
    return {name: whole(source, name) for name in source.shapes() if not name.startswith("optimizer.")}


@pytest.mark.parametrize(
    ("name", "peft", "ranks", "layout"),
    [
        ("llama", LORA, 2, {"tensor_model_parallel_size": 2}),
        ("qwen2", CANONICAL, 2, {"pipeline_model_parallel_size": 2}),
        ("qwen3", DORA, 1, {}),
        ("llama", LAYER, 2, {"ckpt_format": "torch", "use_distributed_optimizer": True}),
        ("qwen3_moe", LORA, 2, {"expert_model_parallel_size": 2}),
        ("mixtral", PARTS_AND_EXPERTS, 1, {}),
        ("gpt_oss", NORMALIZED, 1, {}),
        # The library takes dense layers and shared experts of such a model for parameters, too.
        ("deepseek_v3", replace(LORA, target_modules=()), 1, {}),
    ],
)
def test_adapters_leave_and_come_back(name: str, peft: PEFTConfig, ranks: int, layout: dict[str, Any], tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    saved = trained(tmp_path, name, peft, ranks, **layout)
    for verb, export in (("peft", export_peft), ("merged", export_hf)):
        with new_folder(tmp_path / verb) as folder:
            export(saved, folder)
    base = AutoModelForCausalLM.from_pretrained(RECORDED / name, dtype=torch.float32)
    before = logits(base)
    adapted = PeftModel.from_pretrained(base, tmp_path / "peft")
    loaded = {key for key, value in adapted.named_parameters() if "lora_" in key}
    assert len(loaded) == len(load_file(tmp_path / "peft" / "adapter_model.safetensors"))
    after = logits(adapted)
    assert (after - before).abs().max() > 1e-3
    merged = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32))
    assert (merged - after).abs().max() < 1e-5 * after.abs().max()
    with new_folder(tmp_path / "back") as folder:
        import_peft(tmp_path / "peft", RECORDED / name, folder)
    ours, back = adapters(saved / "iter_0000002"), adapters(tmp_path / "back" / "release")
    assert ours.keys() == back.keys()
    assert all(torch.equal(ours[key], back[key]) for key in ours)
    said = json.loads((tmp_path / "back" / "peft.json").read_text())
    assert (said["scheme"], said["dim"], said["alpha"]) == (peft.scheme, 4, 8.0)
    of_experts = {field: getattr(peft, field) for field in ("share_expert_adapters", "normalize_moe_lora")}
    assert {field: said[field] for field in of_experts} == of_experts


def test_imported_adapters_are_where_a_run_starts(tmp_path: Path) -> None:
    """With a rate of zero it saves what came in, in any layout and though what it says of its targets is spelled otherwise."""
    saved = trained(tmp_path, "mixtral", PARTS_AND_EXPERTS)
    with new_folder(tmp_path / "peft") as folder:
        export_peft(saved, folder)
    with new_folder(tmp_path / "ckpt") as folder:
        import_peft(tmp_path / "peft", RECORDED / "mixtral", folder)
    said = json.loads((tmp_path / "ckpt" / "peft.json").read_text())
    peft = replace(PARTS_AND_EXPERTS, target_modules=tuple(said["target_modules"]))
    rate = {"train_iters": 1, "lr": 0.0, "min_lr": 0.0, "save": str(tmp_path / "kept"), "save_interval": 1}
    config = hf_container(tmp_path, RECORDED / "mixtral", 2, "again", expert_model_parallel_size=2, **rate)
    checkpoint = replace(config.checkpoint, load=str(tmp_path / "ckpt"))
    run_ranks(train_rank, 2, replace(config, peft=peft, checkpoint=checkpoint))
    before, after = adapters(saved / "iter_0000002"), adapters(tmp_path / "kept" / "iter_0000001")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_sample_of_a_run_is_of_base_and_adapters(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    config = hf_container(
        tmp_path, RECORDED / "llama", 1, "tuned", train_iters=2, lr=5.0e-2, save="checkpoints", save_interval=2
    )
    config = replace(config, peft=LORA)
    run_ranks(train_rank, 1, config)
    file = Path(config.run.folder) / "config.yaml"
    file.write_text(serialize.dump(config))
    text = sample_run(file, prompt="3 4 5", max_new_tokens=4, temperature=0.0, top_p=1.0, seed=0)
    with new_folder(tmp_path / "merged") as folder:
        export_hf(Path(config.run.folder) / "checkpoints", folder)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        for _ in range(4):
            ids = torch.cat((ids, model(ids).logits[:, -1:].argmax(-1)), dim=1)
    words, end = ids[0, 3:].tolist(), config.tokenizer.vocab_size
    # A sample ends where the document does.
    assert text.split() == [str(word) for word in (words[: words.index(end)] if end in words else words)] != []


def test_a_merge_with_another_base_is_refused(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "llama", tmp_path / "hf")
    config = hf_container(tmp_path, tmp_path / "hf", 1, "tuned", train_iters=1, save=str(tmp_path / "saved"), save_interval=1)
    run_ranks(train_rank, 1, replace(config, peft=LORA))
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="give the base that they need"), new_folder(tmp_path / "out") as folder:
        export_hf(tmp_path / "saved", folder)
    with pytest.raises(
        InputError, match=r"the base is another model: \S+ (is not there|has shape .*), and in theirs has shape"
    ):
        export_hf(tmp_path / "saved", tmp_path, base=RECORDED / "qwen2")
    shutil.rmtree(tmp_path / "hf")
    with pytest.raises(InputError, match="hf, which is not there any more: give its new place with --base"):
        export_hf(tmp_path / "saved", tmp_path)
    with new_folder(tmp_path / "out") as folder:
        export_hf(tmp_path / "saved", folder, original=RECORDED / "llama", base=RECORDED / "llama")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == tensors.keys()


def test_what_the_library_cannot_say_of_experts_is_refused(tmp_path: Path) -> None:
    """It has no DoRA of parameters, and adapts dense layers and shared experts of a model with experts as such."""
    dense = replace(DORA, target_modules=("*.layers.0.mlp.linear_fc2", "linear_proj"))
    saved = trained(tmp_path, "deepseek_v3", dense)
    with pytest.raises(
        InputError, match=r"adapts mlp\.down_proj\.weight as parameters, which have no DoRA there; .*export-hf` merges"
    ):
        export_peft(saved, tmp_path)


DOWN = "base_model.model.model.layers.0.mlp.down_proj"
LENGTHS = {
    name.replace("lora_B.weight", "lora_magnitude_vector"): torch.ones(len(value))
    for name, value in load_file(RECORDED / "lora_llama" / "adapter_model.safetensors").items()
    if "lora_B" in name
}
ODD: dict[str, tuple[dict[str, Any], dict[str, Tensor | None], str]] = {
    "entries": (
        {"bias": "all", "modules_to_save": ["lm_head"]},
        {},
        r"bias is all; only none can be read(.|\n)*modules_to_save is \['lm_head'\]",
    ),
    "start": ({"init_lora_weights": "pissa"}, {}, "init_lora_weights is pissa; only True can be read"),
    "numbers": ({"r": "x", "lora_alpha": None}, {}, r"r is x; it is a number above 0(.|\n)*lora_alpha is missing"),
    "rank": ({"r": 8}, {}, r"another rank than r, 8, of adapter_config.json: model\.layers"),
    "halves": (
        {},
        {f"{DOWN}.lora_B.weight": None},
        r"needs lora_A, lora_B, and these have others: model\.layers\.0\.mlp\.down",
    ),
    "no lengths": ({"use_dora": True}, {}, "needs lora_A, lora_B, lora_magnitude_vector, and these have others"),
    "apart": ({"use_dora": True}, dict(LENGTHS), "all must have an adapter, with one lora_A"),
    "size": (
        {},
        {f"{DOWN}.lora_A.weight": torch.zeros(4, 5)},
        r"of another size than the model in .*: model\.layers\.0\.mlp\.down",
    ),
    "head": (
        {},
        {f"base_model.model.lm_head.lora_{one}.weight": torch.zeros(4, 4) for one in "AB"},
        "no linears that can be adapted here called lm_head",
    ),
    "embedding": (
        {},
        {"base_model.model.model.embed_tokens.lora_embedding_A": torch.zeros(4, 4)},
        "no factors of adapters: base",
    ),
}


def test_how_adapters_are_scaled_and_dropped_comes_along(tmp_path: Path) -> None:
    content = json.loads((RECORDED / "lora_llama" / "adapter_config.json").read_text())
    theirs, out = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(RECORDED / "lora_llama", theirs)
    (theirs / "adapter_config.json").write_text(json.dumps({**content, "use_rslora": True, "lora_dropout": 0.25}))
    out.mkdir()
    import_peft(theirs, RECORDED / "llama", out)
    peft = json.loads((out / "peft.json").read_text())
    # There B A is multiplied by lora_alpha / sqrt(r), here by alpha / dim.
    assert peft["alpha"] / peft["dim"] == pytest.approx(content["lora_alpha"] / content["r"] ** 0.5)
    assert peft["dropout"] == 0.25


EXPERTS = "base_model.model.model.layers.0.mlp.experts"
STACKS = {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"], "r": 2, "lora_alpha": 4}
PAIR = {f"{EXPERTS}.lora_A.weight": torch.zeros(16, 24), f"{EXPERTS}.lora_B.weight": torch.zeros(32, 16)}
"""Of rank 2 for the last matrices of 8 experts."""
ODD_EXPERTS: dict[str, tuple[dict[str, Any], dict[str, Tensor], str]] = {
    "single": (
        {**STACKS, "target_modules": ["gate_proj"]},
        {f"{EXPERTS}.3.gate_proj.lora_{one}.weight": torch.zeros(2, 32) for one in "AB"},
        r"share one lora_A, as in the stacks .* each their own: model\.layers\.0\.mlp\.experts\.3\.gate_proj",
    ),
    "not named": ({**STACKS, "target_parameters": None}, PAIR, "no linears that can be adapted here called model"),
    "rank": ({**STACKS, "r": 4}, PAIR, r"another rank than r, 4, of adapter_config.json: model\.layers\.0\.mlp\.experts"),
    "pattern": (
        {**STACKS, "r": 16, "rank_pattern": {"experts.down_proj": 2}},
        PAIR,
        r"rank_pattern gives decoder\.layers\.0\.mlp\.experts\.linear_fc2 the rank 2; .* r, 16, or all experts r / 2",
    ),
    "size": (
        STACKS,
        {**PAIR, f"{EXPERTS}.lora_B.weight": torch.zeros(33, 16)},
        r"of another size than the model in .*: model\.layers\.0\.mlp\.experts",
    ),
}


@pytest.mark.parametrize("case", ODD_EXPERTS)
def test_what_adapters_of_experts_cannot_be_is_refused(case: str, tmp_path: Path) -> None:
    entries, tensors, said = ODD_EXPERTS[case]
    content = json.loads((RECORDED / "lora_llama" / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**content, **entries}))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=said):
        import_peft(tmp_path, RECORDED / "qwen3_moe", tmp_path)


@pytest.mark.parametrize("case", ODD)
def test_what_adapters_of_ours_cannot_be_is_refused(case: str, tmp_path: Path) -> None:
    entries, changed, said = ODD[case]
    content = json.loads((RECORDED / "lora_llama" / "adapter_config.json").read_text())
    tensors = load_file(RECORDED / "lora_llama" / "adapter_model.safetensors")
    kept = {name: value for name, value in {**tensors, **changed}.items() if value is not None}
    (tmp_path / "adapter_config.json").write_text(json.dumps({**content, **entries}))
    save_file(kept, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=said):
        import_peft(tmp_path, RECORDED / "llama", tmp_path)


def test_a_whole_model_has_no_adapters_to_export(tmp_path: Path) -> None:
    config = hf_container(tmp_path, RECORDED / "llama", 1, "full", train_iters=1, save=str(tmp_path / "saved"), save_interval=1)
    run_ranks(train_rank, 1, config)
    with pytest.raises(InputError, match="holds a whole model and no adapters; `primus checkpoint export-hf`"):
        export_peft(tmp_path / "saved", tmp_path)
