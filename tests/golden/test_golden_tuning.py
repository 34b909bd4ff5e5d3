"""Fine-tuning is what a plain loop over transformers' and peft's models does with the same rows in the same order."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_runs import RECORDED, hf_container, losses

from primus.engine.checkpoint.hf.read import model_in
from primus.engine.config import ConfigContainer, PEFTConfig, SFTConfig
from primus.engine.config.peft import DEFAULT_TARGETS
from primus.engine.data.sft.order import Order
from primus.engine.model.builder import build_model, model_place
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.peft.apply import apply_peft

transformers = pytest.importorskip("transformers")

ITERATIONS, BATCH, RATE = 20, 4, 2.0e-3
KEYS = {
    "calculate_per_token_loss": True,
    "train_iters": ITERATIONS,
    "global_batch_size": BATCH,
    "micro_batch_size": 2,
    "sequence_parallel": False,
    "lr": RATE,
    "min_lr": RATE,
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "clip_grad": 1.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_eps": 1.0e-5,
}


@pytest.fixture
def rows(tmp_path: Path) -> SFTConfig:
    """Twenty rows of numbers, of which none is set apart."""
    random = np.random.default_rng(1)
    texts = [[" ".join(map(str, random.integers(1, 60, count))) for count in random.integers(1, 12, 2)] for _ in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"input": prompt, "output": answer}) + "\n" for prompt, answer in texts))
    return SFTConfig(train=str(file), seed=5, do_validation=False)


def plain_losses(model: torch.nn.Module, rows: SFTConfig, end: int) -> list[float]:
    """Train as one would without this engine: a batch padded, only answers have labels, and the loss is their mean."""
    texts = [json.loads(line) for line in Path(rows.train).read_text().splitlines()]
    pairs = [([*map(int, row["input"].split())], [*map(int, row["output"].split()), end]) for row in texts]
    order = Order(total=len(pairs), batch=BATCH, seed=rows.seed)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, RATE, betas=(0.9, 0.98), eps=1.0e-5, weight_decay=0.0)
    found = []
    for iteration in range(1, ITERATIONS + 1):
        epoch, done = divmod((iteration - 1) * BATCH, order.epoch_samples)
        chosen = [pairs[number] for number in order.epoch(epoch)[done : done + BATCH]]
        longest = max(len(prompt) + len(answer) for prompt, answer in chosen)
        ids = torch.full((BATCH, longest), end)
        labels = torch.full((BATCH, longest), -100)
        for number, (prompt, answer) in enumerate(chosen):
            ids[number, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
            labels[number, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        logits = model(input_ids=ids).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def hf_model(name: str) -> torch.nn.Module:
    model = transformers.AutoModelForCausalLM.from_pretrained(RECORDED / name, dtype=torch.float32, attn_implementation="eager")
    return model.eval()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_all_weights_train_as_in_a_plain_loop(name: str, rows: SFTConfig, tmp_path: Path) -> None:
    config = hf_container(tmp_path, RECORDED / name, 1, "ours", **KEYS)
    end = config.tokenizer.vocab_size
    assert end is not None
    ours = losses(replace(config, dataset=replace(config.dataset, sft=rows)), 1)
    assert ours == pytest.approx(plain_losses(hf_model(name), rows, end), rel=1e-5)
    assert ours[-1] < 0.9 * ours[0]


PARTS = {
    "q_proj": "self_attention.linear_qkv.adapter.adapter_q",
    "k_proj": "self_attention.linear_qkv.adapter.adapter_k",
    "v_proj": "self_attention.linear_qkv.adapter.adapter_v",
    "o_proj": "self_attention.linear_proj.adapter",
    "gate_proj": "mlp.linear_fc1.adapter.adapter_gate",
    "up_proj": "mlp.linear_fc1.adapter.adapter_up",
    "down_proj": "mlp.linear_fc2.adapter",
}
LORA = PEFTConfig(scheme="canonical_lora", target_modules=DEFAULT_TARGETS["canonical_lora"], dim=4, alpha=8.0)


def first_adapters(config: ConfigContainer) -> dict[str, torch.Tensor]:
    """Return the values with which a run's adapters begin."""
    model = model_in(RECORDED / "llama")[1]
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (built,) = build_model(model, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    place = model_place(model, mesh=mesh, dtype=torch.float32, device="cpu", streams=streams)
    apply_peft([built], LORA, model, place=place, mesh=mesh, seed=config.rng.seed)
    return {name: weight.detach() for name, weight in built.named_parameters() if ".adapter" in name}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_train_as_in_a_plain_loop_with_peft(rows: SFTConfig, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = hf_container(tmp_path, RECORDED / "llama", 1, "ours", **KEYS)
    config = replace(config, dataset=replace(config.dataset, sft=rows), peft=LORA)
    wanted = peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(PARTS))
    model = peft.get_peft_model(hf_model("llama"), wanted)
    first = first_adapters(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                number, part, matrix = re.search(r"layers\.(\d+)\.\w+\.(\w+)\.lora_(\w)", name).groups()  # type: ignore[union-attr]
                weight.copy_(first[f"decoder.layers.{number}.{PARTS[part]}.linear_{'in' if matrix == 'A' else 'out'}.weight"])
    end = config.tokenizer.vocab_size
    assert end is not None
    assert losses(config, 1) == pytest.approx(plain_losses(model, rows, end), rel=1e-5)
