"""The experiment that tests vary: the keys of a dense model of a few hundred thousand parameters on synthetic data."""

from typing import Any

__all__ = ["TINY"]

TINY: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "vocab_size": 95,
    "make_vocab_size_divisible_by": 8,
    "tokenizer_type": "NullTokenizer",
    "mock_data": True,
    "dataloader_type": "single",
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "train_iters": 6,
    "lr": 1.0e-3,
    "min_lr": 1.0e-4,
    "lr_warmup_iters": 0,
    "eval_iters": 0,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bf16": False,
    "finetune": False,
    "seed": 7,
    "num_workers": 0,
    "distributed_backend": "gloo",
}
