"""Fine-tuning learns answers: a tiny random Qwen3 learns capitals with all its weights, then rivers with adapters alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ranks import run_ranks
from runs import train_rank

from primus.backends.megatron_bridge.build import MegatronBridgeBuilder
from primus.core.experiment import load_experiment
from primus.engine.checkpoint.hf.exchange import export_hf
from primus.engine.checkpoint.hf.new_folder import new_folder

transformers = pytest.importorskip("transformers")

QUESTIONS = Path(__file__).parents[1] / "data" / "sft"
LOSS = {"capitals": 0.15, "rivers": 0.5}
"""What is reached; adapters beside an output that stands still come less near."""
WORDS: dict[str, Any] = {
    "precision_config": "fp32",
    "min_lr": 0.0,
    "lr_warmup_iters": 5,
    "train_iters": 60,
    "save_interval": 60,
    "global_batch_size": 12,
    "micro_batch_size": 12,
    "seq_length": 64,
    "eval_iters": 0,
    "dataset": {"do_validation": False},
}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (QUESTIONS / f"{name}.jsonl").read_text().splitlines()]


def asked(row: dict[str, Any]) -> str:
    return f"Context: {row['context']} Question: {row['question']} Answer:"


def write_model(folder: Path) -> None:
    """Write a random model, large enough in its output that adapters can be sure, and a tokenizer of bytes and their pairs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([asked(row) for name in LOSS for row in rows_of(name)], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}
    rest = {"num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False, "eos_token_id": 0}
    torch.manual_seed(0)
    config = transformers.Qwen3Config(vocab_size=tokenizer.get_vocab_size(), initializer_range=0.1, **sizes, **rest)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


def trained(folder: Path, name: str, **words: Any) -> list[float]:
    """Fine-tune and export to the folder `name`; return the losses."""
    words = {**WORDS, **words, "dataset": {**WORDS["dataset"], "dataset_root": str(QUESTIONS / f"{name}.jsonl")}}
    module = {"framework": "megatron_bridge", "config": "sft_trainer.yaml", "model": "auto.yaml", "overrides": words}
    identity = {"work_group": "g", "user_name": "u", "exp_name": name, "workspace": str(folder)}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**identity, "modules": {"post_trainer": module}}))
    experiment = load_experiment(folder / f"{name}.yaml", [], {})
    config = MegatronBridgeBuilder(experiment, experiment.modules["post_trainer"], 1, folder / "run" / name).build().config
    run_ranks(train_rank, 1, config)
    rows = [json.loads(line) for line in (Path(config.run.folder) / "metrics.jsonl").read_text().splitlines()]
    with new_folder(folder / name) as out:
        export_hf(Path(config.run.folder) / "checkpoints", out)
    return [row["lm_loss"] for row in rows if "lm_loss" in row]


def answers(folder: Path, name: str) -> list[str]:
    """Return what transformers' greedy search answers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for row in rows_of(name):
        ids = tokenizer(asked(row), return_tensors="pt").input_ids
        new = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        found.append(tokenizer.decode(new, skip_special_tokens=True).strip())
    return found


def test_answers_are_learnt(tmp_path: Path) -> None:
    write_model(tmp_path / "random")
    losses = trained(tmp_path, "capitals", hf_path=str(tmp_path / "random"), peft="none", finetune_lr=3e-3)
    assert losses[0] > 6
    assert losses[-1] < LOSS["capitals"], losses[-1]
    assert answers(tmp_path / "capitals", "capitals") == [row["answers"]["text"][0] for row in rows_of("capitals")]
    losses = trained(tmp_path, "rivers", hf_path=str(tmp_path / "capitals"), peft="lora", peft_dim=8, finetune_lr=5e-3)
    assert losses[0] > 4
    assert losses[-1] < LOSS["rivers"], losses[-1]
    assert answers(tmp_path / "rivers", "rivers") == [row["answers"]["text"][0] for row in rows_of("rivers")]
