"""From files of text to indexed tokens, without torch.

- `sources.py`: documents of text, JSON-lines and parquet files, cut into units of work
- `prepare.py`: `prepare`, many processes to one dataset
- `work.py`: what each process does
- `parts.py`: what is done so far, on disk
- `train.py`: `train_tokenizer` and its report `TrainedTokenizer`
"""

from primus.engine.data.prepare.prepare import PrepareOptions, PrepareReport, prepare
from primus.engine.data.prepare.train import TrainedTokenizer, train_tokenizer

__all__ = ["PrepareOptions", "PrepareReport", "TrainedTokenizer", "prepare", "train_tokenizer"]
