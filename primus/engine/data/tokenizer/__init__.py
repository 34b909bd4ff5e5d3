"""Tokenizers, without torch: `build_tokenizer` opens the one a configuration names.

- `base.py`: what a tokenizer can do
- `fast.py`: tokenizers of the `tokenizers` library
- `null.py`: integers between blanks
- `huggingface.py`: hub tokenizers and their aliases
- `sentencepiece.py`: SentencePiece models
- `tables.py`: GPT-2 BPE, WordPiece, Tik
"""

from primus.engine.data.tokenizer.base import Tokenizer
from primus.engine.data.tokenizer.build import build_tokenizer

__all__ = ["Tokenizer", "build_tokenizer"]
