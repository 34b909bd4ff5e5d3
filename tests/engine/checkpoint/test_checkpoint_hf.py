"""Models of Hugging Face come in and go out bit by bit, and compute what the transformers library computes."""

import json
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_folders import RECORDED, config_of, imported, logits, model_from, tensors
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from torch import Tensor

from primus.engine.checkpoint.hf.describe import described
from primus.engine.checkpoint.hf.exchange import export_hf, import_hf
from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.read import model_in, read_config
from primus.engine.checkpoint.hf.shapes import global_shapes
from primus.engine.checkpoint.hf.weights import HFWeights
from primus.engine.config import ParallelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.system import DistConfig
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import build_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Shards, buffer_shards, global_parameters, weight_shards
from primus.errors import InputError, RunError

NAMES = ["llama", "llama3_rope", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]
EXPECTED = json.loads((RECORDED / "index.json").read_text())


def same(one: Any, other: Any) -> bool:
    """Tell whether two maps hold the same tensors, bit by bit."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one
    )


def without_predictions(content: dict[str, Any]) -> dict[str, Any]:
    """Return a `config.json` that says so where no prediction layer is stored."""
    name = "num_nextn_predict_layers"
    return {**content, name: 0} if name in content else content


def copied(name: str, folder: Path, **changes: Any) -> Path:
    """Return a copy of a recorded folder with other entries in `config.json`; None removes one."""
    shutil.copytree(RECORDED / name, folder)
    content = {**read_config(folder), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_recorded_models_compute_what_transformers_computed(name: str, tmp_path: Path) -> None:
    source, recorded = RECORDED / name, load_file(RECORDED / name / "reference.safetensors")
    checkpoint = imported(source, tmp_path / "ckpt")
    model = model_from(checkpoint, config_of(source))
    ours = logits(model, recorded["input_ids"])
    assert (ours - recorded["logits"]).abs().max() < 1e-5 * recorded["logits"].abs().max()
    log_probabilities = ours[:, :-1].log_softmax(-1).gather(-1, recorded["input_ids"][:, 1:, None])[..., 0]
    assert log_probabilities.mean().item() == pytest.approx(-EXPECTED[name]["mean_next_token_loss"], rel=1e-5)
    ids = recorded["greedy/ids"][:, :8]
    for _ in range(10):
        ids = torch.cat((ids, logits(model, ids)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(ids, recorded["greedy/ids"])


@pytest.mark.parametrize("name", NAMES)
def test_what_came_in_goes_out_bit_by_bit(name: str, tmp_path: Path) -> None:
    """With the original's `config.json`, or with one that says the same of the model; in one file, or in several."""
    source, before = RECORDED / name, load_file(RECORDED / name / "model.safetensors")
    checkpoint = imported(source, tmp_path / "ckpt")
    with new_folder(tmp_path / "known") as folder:
        export_hf(checkpoint, folder)
    assert same(load_file(tmp_path / "known" / "model.safetensors"), before)
    assert read_config(tmp_path / "known") == without_predictions(read_config(source))
    shutil.rmtree(checkpoint / "huggingface")
    with new_folder(tmp_path / "unknown") as folder:
        export_hf(checkpoint / "release", folder, max_file_bytes=60_000)
    index = json.loads((tmp_path / "unknown" / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == before.keys()
    assert len(set(index.values())) > 2
    assert same(tensors(tmp_path / "unknown"), before)
    assert differences(config_of(tmp_path / "unknown"), config_of(source)) == []
    again = imported(tmp_path / "unknown", tmp_path / "again")
    assert same(model_from(again, config_of(source)).state_dict(), model_from(checkpoint, config_of(source)).state_dict())


WINDOWED = ["full_attention", "sliding_attention"]
FRESH: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "qwen2": {"tie_word_embeddings": False, "use_sliding_window": True, "sliding_window": 6, "layer_types": WINDOWED},
    "qwen3": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    "mixtral": {"num_hidden_layers": 1, "sliding_window": 5},
    "gpt_oss": {"layer_types": None, "num_local_experts": 3},
    "qwen3_moe": {"mlp_only_layers": [1], "norm_topk_prob": False},
    "deepseek_v3": {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_parameters": {"rope_theta": 1000.0}},
}


@pytest.mark.parametrize("name", FRESH)
def test_fresh_models_of_transformers_come_and_go(name: str, tmp_path: Path) -> None:
    """In bf16 on disk, in several files; the exported folder opens without a tensor too many or too few."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    config = AutoConfig.for_model(**{**read_config(RECORDED / name), **FRESH[name], "vocab_size": 99, "initializer_range": 0.2})
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "hf", max_shard_size="60KB")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", attn_implementation="eager", dtype=torch.float32)
    model = config_of(tmp_path / "hf")
    checkpoint = imported(tmp_path / "hf", tmp_path / "ckpt")
    ids = torch.randint(99, (2, 20))
    with torch.no_grad():
        expected = theirs(ids).logits
    assert (logits(model_from(checkpoint, model), ids) - expected).abs().max() < 2e-5 * expected.abs().max()
    shutil.rmtree(checkpoint / "huggingface")
    with new_folder(tmp_path / "out") as folder:
        export_hf(checkpoint, folder)
    assert same(tensors(tmp_path / "out"), tensors(tmp_path / "hf"))
    again, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        assert torch.equal(again(ids).logits, expected)


LAYOUTS = {
    "qwen2": (2, ParallelConfig(tensor_model_parallel_size=2)),
    "deepseek_v3": (2, ParallelConfig(expert_model_parallel_size=2)),
    "qwen3_moe": (4, ParallelConfig(tensor_model_parallel_size=2, expert_model_parallel_size=2, sequence_parallel=True)),
}


def filled_alike(_rank: int, source: Path, checkpoint: Path, parallel: ParallelConfig) -> tuple[bool, int]:
    """Fill this rank's part from the folder and from the checkpoint; compare, and count its elements."""
    from primus.engine.checkpoint.load import load_weights

    mesh = build_mesh(parallel, DistConfig(), torch.device("cpu"))
    family, model = model_in(source)
    pair = []
    for _ in range(2):
        (built,) = build_model(
            replace(model, seq_length=64, parallel=parallel),
            mesh=mesh,
            dtype=torch.float32,
            device="cpu",
            seed=1,
            streams=RandomStreams(1, mesh.coordinates),
        )
        pair.append({**weight_shards(global_parameters([built]), mesh), **buffer_shards([built])})
    HFWeights(source, family, model, global_shapes(model)).load(pair[0])
    load_weights(checkpoint / "release", pair[1], mesh=mesh)
    alike = all(torch.equal(a.data, b.data) for name in pair[0] for a, b in zip(*_chunks(pair, name), strict=True))
    return alike, sum(chunk.data.numel() for shards in pair[0].values() for chunk in shards.chunks)


def _chunks(pair: list[dict[str, Shards]], name: str) -> list[Any]:
    return [shards[name].chunks for shards in pair]


@pytest.mark.parametrize("name", LAYOUTS)
def test_ranks_fill_what_they_hold_from_the_folder_itself(name: str, tmp_path: Path) -> None:
    ranks, parallel = LAYOUTS[name]
    checkpoint = imported(RECORDED / name, tmp_path / "ckpt")
    results = run_ranks(filled_alike, ranks, RECORDED / name, checkpoint, parallel)
    total = sum(tensor.numel() for tensor in load_file(RECORDED / name / "model.safetensors").values())
    assert all(alike for alike, _ in results)
    assert all(count < 0.85 * total for _, count in results)


def anonymous_bytes() -> int:
    """Return this process's own memory; mapped files are not in it."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


def growth(_rank: int, verb: Any, *arguments: Any) -> int:
    """Return how much memory a call took at its highest, as a thread sees it."""
    start, highest, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            highest[0] = max(highest[0], anonymous_bytes() - start)
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    verb(*arguments)
    done.set()
    watcher.join()
    return highest[0]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not tell the memory of a process")
def test_a_model_passes_through_the_memory_of_a_tensor(tmp_path: Path) -> None:
    model = replace(
        config_of(RECORDED / "llama"),
        num_layers=24,
        hidden_size=256,
        ffn_hidden_size=1024,
        vocab_size=64,
        attention=replace(config_of(RECORDED / "llama").attention, kv_channels=64),
    )
    source = tmp_path / "hf"
    source.mkdir()
    family, content = described(model, "float32")
    (source / "config.json").write_text(json.dumps(content))
    from primus.engine.checkpoint.hf.weights import their_tensors

    shapes = [their_tensors(family, name, shape, model) for name, shape in global_shapes(model).items()]
    save_file({name: torch.ones(shape) for each in shapes for name, shape in each.items()}, source / "model.safetensors")
    size = (source / "model.safetensors").stat().st_size
    for name in ("ckpt", "out"):
        (tmp_path / name).mkdir()
    (brought,) = run_ranks(growth, 1, import_hf, source, tmp_path / "ckpt")
    (sent,) = run_ranks(growth, 1, export_hf, tmp_path / "ckpt", tmp_path / "out")
    assert same(tensors(tmp_path / "out"), tensors(source))
    assert size > 80e6
    assert max(brought, sent) < size / 4


def test_tied_heads_are_written_once_and_a_copy_of_them_is_not_missed(tmp_path: Path) -> None:
    source = copied("qwen2", tmp_path / "hf")
    held = load_file(source / "model.safetensors")
    assert "lm_head.weight" not in held
    save_file({**held, "lm_head.weight": held["model.embed_tokens.weight"].clone()}, source / "model.safetensors")
    checkpoint = imported(source, tmp_path / "ckpt")
    with new_folder(tmp_path / "out") as folder:
        export_hf(checkpoint, folder)
    assert same(tensors(tmp_path / "out"), held)


def test_other_files_go_on_and_tensors_that_are_left_aside_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = copied("llama", tmp_path / "hf", organisation="kept")
    (source / "tokenizer.json").write_text("{}")
    held = load_file(source / "model.safetensors")
    save_file({**held, "model.layers.2.eh_proj.weight": torch.ones(2, 2)}, source / "model.safetensors")
    checkpoint = imported(source, tmp_path / "ckpt")
    assert "NOT imported, the model has no part for them: model.layers.2.eh_proj.weight" in caplog.text
    with new_folder(tmp_path / "out") as folder:
        export_hf(checkpoint, folder)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert read_config(tmp_path / "out")["organisation"] == "kept"
    assert same(tensors(tmp_path / "out"), held)


def test_all_that_a_folder_holds_wrongly_is_named_in_one_message(tmp_path: Path) -> None:
    source = copied("llama", tmp_path / "hf")
    held: dict[str, Tensor] = load_file(source / "model.safetensors")
    for layer in range(2):
        del held[f"model.layers.{layer}.mlp.up_proj.weight"]
    held["model.norm.weight"] = torch.ones(5)
    held["model.layers.0.self_attn.q_proj.bias"] = torch.ones(48)
    held["lm_head.weight"] = held["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(held, source / "model.safetensors")
    with pytest.raises(InputError) as raised:
        imported(source, tmp_path / "ckpt")
    assert [problem.removeprefix(f"{source}: ") for problem in raised.value.problems] == [
        "model.norm.weight has shape [5], and config.json asks for [48]",
        "lm_head.weight is of dtype F8_E4M3; weights of F64, F32, BF16, F16 are read, quantised ones are not",
        "tensors that config.json asks for are missing: model.layers.{0-1}.mlp.up_proj.weight",
        "tensors have no place in the model of config.json: model.layers.0.self_attn.q_proj.bias",
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["hf"]


def test_files_that_are_gone_or_cut_short_are_named(tmp_path: Path) -> None:
    checkpoint = imported(RECORDED / "llama", tmp_path / "ckpt")
    with new_folder(tmp_path / "hf") as folder:
        export_hf(checkpoint, folder, max_file_bytes=60_000)
    first, second, *_ = sorted((tmp_path / "hf").glob("model-*"))
    whole = second.read_bytes()
    second.write_bytes(whole[:-10])
    with pytest.raises(InputError, match=rf"{second} is damaged or no safetensors file"):
        imported(tmp_path / "hf", tmp_path / "new")
    second.unlink()
    first.unlink()
    with pytest.raises(InputError) as raised:
        imported(tmp_path / "hf", tmp_path / "new")
    assert [problem.split(" names ")[1] for problem in raised.value.problems] == [
        f"the file {file.name}, which is not in the folder" for file in (first, second)
    ]
    second.write_bytes(whole)
    shutil.copyfile(second, first)
    with pytest.raises(InputError, match=rf"the index says that {first.name} holds"):
        imported(tmp_path / "hf", tmp_path / "new")


LLAMA3 = read_config(RECORDED / "llama3_rope")["rope_parameters"]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama",
            {"model_type": "opt"},
            "model_type opt (LlamaForCausalLM) is not known; known are deepseek_v3, gpt_oss, llama",
        ),
        ("llama", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ("llama", {"hidden_size": "big"}, "hidden_size is 'big'; it is a number above 0"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is gelu; only silu can be read"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide num_attention_heads, 4"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type is longrope; known are default, linear"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_type linear needs a factor"),
        ("llama", {"rope_parameters": ["linear"]}, "an entry has a value of another kind than the library writes"),
        ("llama3_rope", {"rope_parameters": {**LLAMA3, "high_freq_factor": 8}}, "low_freq_factor and high_freq_factor are 1"),
        ("llama", {"attention_bias": True}, "attention_bias is True; only False can be read"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 2}, "layer_types has chunked_attention"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 1"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is missing"),
        ("deepseek_v3", {"topk_group": 3}, "num_experts_per_tok is 4 and topk_group 3"),
        ("mixtral", {"num_experts_per_tok": 99}, "num_experts_per_tok is 99; it is at most the number of experts, "),
        ("deepseek_v3", {"n_group": 3}, "n_group is 3; it must divide n_routed_experts, "),
        ("deepseek_v3", {"n_group": 2, "topk_group": 3, "num_experts_per_tok": 6}, "topk_group is 3; it is at most n_group, 2"),
        ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "save them in bfloat16 first"),
    ],
)
def test_models_that_cannot_be_ours_are_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        config_of(copied(name, tmp_path / "hf", **changes))
    assert message in str(raised.value)


def test_older_files_say_the_rotation_apart(tmp_path: Path) -> None:
    newer = read_config(RECORDED / "llama3_rope")
    scaling = {**newer["rope_parameters"]}
    older = copied(
        "llama3_rope", tmp_path / "hf", rope_parameters=None, rope_theta=scaling.pop("rope_theta"), rope_scaling=scaling
    )
    assert config_of(older) == config_of(RECORDED / "llama3_rope")


def test_latent_attention_needs_no_experts() -> None:
    model = replace(config_of(RECORDED / "deepseek_v3"), moe=MoEConfig())
    assert described(model, "float32")[0] == "deepseek_v3"


def test_a_model_that_no_family_is_stays_here(tmp_path: Path) -> None:
    model = config_of(RECORDED / "llama")
    other = replace(model, activation="squared_relu", final_logit_softcapping=30.0)
    with pytest.raises(InputError) as raised:
        described(other, "float32")
    assert raised.value.problems == (
        "activation is squared_relu: a llama, the nearest family, has swiglu",
        "final_logit_softcapping is 30.0: a llama, the nearest family, has None",
    )


def test_weights_of_another_model_than_the_original_are_refused(tmp_path: Path) -> None:
    checkpoint = imported(RECORDED / "llama", tmp_path / "ckpt")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError) as raised:
        export_hf(checkpoint, tmp_path / "out", original=copied("llama", tmp_path / "hf", rms_norm_eps=0.5))
    assert raised.value.problems[0] == f"norm_epsilon is 1e-06 in the checkpoint and 0.5 in {tmp_path}/hf/config.json"
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        export_hf(tmp_path / "out", tmp_path / "out")


def test_a_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(InputError, match="is there already and not empty"), new_folder(tmp_path / "full"):
        pass

    def fill_the_disk() -> None:
        with new_folder(tmp_path / "new") as folder:
            (folder / "part").touch()
            raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match="could not be written: No space left on device"):
        fill_the_disk()
    assert [each.name for each in tmp_path.iterdir()] == ["full"]
