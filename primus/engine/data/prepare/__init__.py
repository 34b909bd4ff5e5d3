"""From files of text to indexed tokens, without torch.

- `sources.py`: documents of text, JSON-lines and parquet files, cut into units of work
- `prepare.py`: `prepare`, many processes to one dataset
- `work.py`: what each process does
- `parts.py`: what is done so far, on disk
- `train.py`: `train_tokenizer`
"""

from primus.engine.data.prepare.prepare import PrepareOptions, PrepareReport, prepare
from primus.engine.data.prepare.train import train_tokenizer

__all__ = ["PrepareOptions", "PrepareReport", "prepare", "train_tokenizer"]
