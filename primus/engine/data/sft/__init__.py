"""Rows of text to fine-tune on, as microbatches.

- `rows.py`: rows of a JSONL file, where they lie; `sources.py`: from a name or a path to rows and their splits
- `fields.py`: what rows of known data sets say, as a prompt and its answer
- `prompts.py`, `chat.py`: a row to tokens, and which of them are trained; `spans.py`: of conversations whose template marks none
- `samples.py`: `Samples`, the two together, cut to a length
- `packing.py`: several samples in a sequence
- `order.py`: which sample is in which microbatch of which rank
- `preflight.py`: all that, tried on one row before a start
- `batches.py`: samples to tensors
"""
