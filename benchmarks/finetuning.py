"""Fine-tuning tokens a second and peak memory of `primus train posttrain` beside transformers + peft, alternating in one run.

Full weights and LoRA (rank 16 on all linears) on job M's shape in fp32, answers half of each sample. `--rows full`: every
sample fills the sequence; `varied`: samples of 64 to 512 tokens, packed by ours, by theirs in batches of eight padded to the
longest (on average the tokens of our step), with the rate of tokens of samples alone. `--trl PYTHON` also times TRL's
SFTTrainer with an interpreter that has it, as it comes, which computes activations again, and without that.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jobs import JOBS, spread

JOB = JOBS["M"]
THREADS = 2
STEPS, WARMUP = 8, 2
VARIED_BATCH = 8
"""Samples of a batch of theirs that are as many tokens, on average, as two packs."""
RANK = 16
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LEARNING_RATE = 1.0e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="sft,lora")
    parser.add_argument("--rows", default="full,varied")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--trl", metavar="PYTHON")
    parser.add_argument("--child", nargs=4, metavar=("PEER", "METHOD", "ROWS", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        peer, method, rows, folder = arguments.child
        batch = VARIED_BATCH if rows == "varied" else JOB.micro_batch_size
        print(json.dumps(CHILDREN[peer](method, batch, Path(folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        for rows in arguments.rows.split(","):
            make_rows(Path(folder), varied=rows == "varied")
            for method in arguments.methods.split(","):
                print(json.dumps(compare(method, rows, arguments.pairs, Path(folder), arguments.trl)), flush=True)


def compare(method: str, rows: str, pairs: int, folder: Path, trl_python: str | None) -> dict[str, object]:
    """Time all sides `pairs` times in turn."""
    sides: dict[str, Callable[[], dict[str, float]]] = {
        "ours": lambda: ours(method, rows, folder),
        "transformers": lambda: child(sys.executable, "transformers", method, rows, folder),
    }
    if trl_python:
        for peer in ("trl", "trl_keeping_activations"):
            sides[peer] = partial(child, trl_python, peer, method, rows, folder)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(pairs):
        for name, run in sides.items():
            measured[name].append(run())
    result: dict[str, object] = {"what": "fine-tuning throughput", "method": method, "rows": rows}
    for name, runs in measured.items():
        result[name] = {
            "useful_tokens_s": [round(run["tokens_s"], 1) for run in runs],
            "peak_mb": round(max(run["peak_mb"] for run in runs)),
        }
    for name in list(measured)[1:]:
        pairs_of = zip(measured["ours"], measured[name], strict=True)
        result[f"over_{name}"] = spread([a["tokens_s"] / b["tokens_s"] for a, b in pairs_of])
    return result


def make_model(folder: Path) -> None:
    """Write a random Llama of the job's shape and a tokenizer that knows one word an id."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<pad>": 0, "</s>": 1, **{f"w{number}": number for number in range(2, JOB.vocabulary)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<pad>")
    fast.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=JOB.vocabulary,
        hidden_size=JOB.hidden,
        intermediate_size=JOB.ffn,
        num_hidden_layers=JOB.layers,
        num_attention_heads=JOB.heads,
        num_key_value_heads=JOB.groups,
        max_position_embeddings=JOB.seq_length,
        tie_word_embeddings=False,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")


def make_rows(folder: Path, *, varied: bool) -> None:
    """Write samples whose answer is their second half; with the end token they have the sequence's length at most."""
    draw = random.Random(0)
    batch = STEPS * (VARIED_BATCH if varied else JOB.micro_batch_size)
    lines = []
    for _ in range(batch):
        length = draw.randint(64, 512) if varied else JOB.seq_length
        words = [f"w{draw.randrange(2, JOB.vocabulary)}" for _ in range(length)]
        lines.append(json.dumps({"input": " ".join(words[: length // 2]), "output": " ".join(words[length // 2 :])}))
    (folder / "training.jsonl").write_text("\n".join(lines) + "\n")


def samples(folder: Path) -> list[tuple[list[int], int]]:
    """Return the ids of each row, end token included, and how many of them are its prompt."""
    rows = [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]
    made = []
    for row in rows:
        prompt, answer = ([int(word[1:]) for word in row[part].split()] for part in ("input", "output"))
        made.append(([*prompt, *answer, 1], len(prompt)))
    return made


def ours(method: str, rows: str, folder: Path) -> dict[str, float]:
    """Run the command that a user types."""
    is_varied = rows == "varied"
    overrides: dict[str, Any] = {
        "hf_path": str(folder / "model"),
        "dataset": {"dataset_root": str(folder), "do_validation": False, "do_test": False},
        "peft": "none" if method == "sft" else "lora",
        "packed_sequence": is_varied,
        "seq_length": JOB.seq_length,
        "micro_batch_size": 1 if is_varied else JOB.micro_batch_size,
        "global_batch_size": JOB.micro_batch_size,
        "train_iters": STEPS,
        "eval_iters": 0,
        "skip_save": True,
        "precision_config": "fp32",
        "finetune_lr": LEARNING_RATE,
        "lr_warmup_iters": 0,
        "log_interval": 1,
    }
    if method == "lora":
        overrides |= {"peft_dim": RANK, "peft_alpha": 2 * RANK}
    role = {"framework": "megatron_bridge", "config": "sft_trainer.yaml", "model": "auto.yaml", "overrides": overrides}
    names = {"work_group": "bench", "user_name": "bench", "exp_name": method, "workspace": str(folder / "out")}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump({**names, "modules": {"post_trainer": role}}))
    argv = [sys.executable, "-m", "primus.cli.main", "train", "posttrain", "--config", str(file)]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(argv, env=_environment(), stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit((folder / "output.txt").read_text()[-3000:])
    (metrics,) = (folder / "out").rglob("metrics.jsonl")
    found = [json.loads(line) for line in metrics.read_text().splitlines()][WARMUP:]
    metrics.unlink()
    made = samples(folder)
    # `tokens_per_second` has what fills packs up besides.
    inputs_a_trained = sum(len(ids) - 1 for ids, _ in made) / sum(len(ids) - prompt for ids, prompt in made)
    rate = statistics.median(row["trained_tokens_per_second"] for row in found) * inputs_a_trained
    return {"tokens_s": rate, "peak_mb": usage.ru_maxrss / 1024}


def child(python: str, peer: str, method: str, rows: str, folder: Path) -> dict[str, float]:
    """Run another side in a process of its own."""
    argv = [python, __file__, "--child", peer, method, rows, str(folder)]
    done = subprocess.run(argv, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def bare(method: str, size: int, folder: Path) -> dict[str, float]:
    """Train transformers' model, with peft's adapters, in a loop of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    if method == "lora":
        model = with_adapters(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-5, weight_decay=0.1, fused=True)
    model.train()
    rows, times, counts = samples(folder), [], []
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = rows[step * size : (step + 1) * size]
        longest = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in batch])
        labels = torch.tensor([[-100] * n + row[n:] + [-100] * (longest - len(row)) for row, n in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row, _ in batch])
        optimizer.zero_grad()
        inputs, targets = ids[:, :-1], labels[:, 1:].contiguous()
        out = model(input_ids=inputs, attention_mask=mask[:, :-1], labels=inputs, shift_labels=targets)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        times.append(time.perf_counter() - begin)
        counts.append(sum(len(row) - 1 for row, _ in batch))
    return _result(times, counts)


def trl(method: str, size: int, folder: Path, *, recompute: bool = True) -> dict[str, float]:
    """Train by TRL's SFTTrainer."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            times.append(-time.perf_counter())

        def on_step_end(self, *_: object, **__: object) -> None:
            times[-1] += time.perf_counter()

    rows = samples(folder)
    made = Dataset.from_list([{"input_ids": ids, "labels": [-100] * n + ids[n:]} for ids, n in rows])
    arguments = SFTConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=size,
        gradient_checkpointing=recompute,
        max_steps=STEPS,
        max_length=JOB.seq_length + 1,
        learning_rate=LEARNING_RATE,
        optim="adamw_torch_fused",
        use_cpu=True,
        bf16=False,
        fp16=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        args=arguments,
        train_dataset=made,
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        peft_config=LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=LINEARS) if method == "lora" else None,
        callbacks=[Clock()],
    )
    trainer.train()
    mean = sum(len(ids) - 1 for ids, _ in rows) / len(rows) * size
    return _result(times, [mean] * len(times))


CHILDREN: dict[str, Callable[..., dict[str, float]]] = {
    "transformers": bare,
    "trl": trl,
    "trl_keeping_activations": partial(trl, recompute=False),
}


def with_adapters(model: Any) -> Any:
    """Return the model with adapters on all linears of its layers."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=LINEARS))


def _result(times: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
    import resource

    rates = [count / seconds for count, seconds in zip(counts, times, strict=True)][WARMUP:]
    return {"tokens_s": statistics.median(rates), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(THREADS)}


if __name__ == "__main__":
    main()
