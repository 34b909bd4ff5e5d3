"""Make what the small fine-tuning examples need: a Hugging Face folder with a random model, and questions with answers.

    python examples/megatron_bridge/make_tiny.py --family qwen3 --out output/tiny

The questions are about Primus' own keys, out of its key tables: `training.jsonl` asks for meaning, type and chapter of each,
`validation.jsonl` asks for some of the meanings in other words. `chat/` holds the same as messages.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from primus.backends.megatron.keys import KEYS, SECTIONS

FAMILIES = ("llama", "qwen3")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3")
    parser.add_argument("--out", type=Path, default=Path("output/tiny"))
    parser.add_argument("--vocab-size", type=int, default=2048)
    arguments = parser.parse_args()
    training, validation = list(rows()), list(other_words())
    write_rows(arguments.out / "rows", training, validation, chat=False)
    write_rows(arguments.out / "chat", training, validation, chat=True)
    write_model(arguments.out / "model", arguments.family, [text for row in training for text in row], arguments.vocab_size)
    print(f"{len(training)} questions to train on, {len(validation)} to validate, a random {arguments.family}: {arguments.out}")


def rows() -> Iterator[tuple[str, str]]:
    """Yield questions about the keys with their answers."""
    for key in KEYS.values():
        yield f"What does the key {key.name} do?", key.doc
        yield f"Which values does the key {key.name} take?", f"It is of type {key.type}."
        yield f"Which chapter has the key {key.name}?", SECTIONS[key.section]


def other_words() -> Iterator[tuple[str, str]]:
    """Yield some of the questions in words that training does not have."""
    for key in list(KEYS.values())[::5]:
        yield f"Explain the key {key.name}.", key.doc


def write_rows(folder: Path, training: list[tuple[str, str]], validation: list[tuple[str, str]], *, chat: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in (("training", training), ("validation", validation)):
        lines = [json.dumps(messages(*pair) if chat else dict(zip(("input", "output"), pair, strict=True))) for pair in pairs]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def messages(question: str, answer: str) -> dict[str, list[dict[str, str]]]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write_model(folder: Path, family: str, texts: list[str], vocab_size: int) -> None:
    """Write a byte-level BPE tokenizer of the texts, with a chat template, and a model of a million parameters."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=32)) if family == "qwen3" else LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(folder)


if __name__ == "__main__":
    main()
