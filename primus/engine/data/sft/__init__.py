"""Rows of text to fine-tune on, as microbatches.

- `rows.py`: rows of a JSONL file, where they lie; `sources.py`: from a name or a path to rows and their splits
- `fields.py`: what rows of known data sets say, as a prompt and its answer
- `prompts.py`, `chat.py`: a row to tokens, and which of them are trained; `spans.py`: if a conversation marks none
- `samples.py`: `Samples`, the two together, cut to a length
- `tokens.py`: `Tokens`, all samples of rows on disk
- `packing.py`: several samples in a sequence; `shape.py`: how long sequences are
- `opening.py`: `Opener`, the rows of a run to samples and packs
- `packed_files.py`: packs as files; `own_packs.py`: those that a run takes
- `prepare.py`: rows prepared before a run, `picture.py`: their lengths, `show.py`: samples to look at
- `order.py`: which sample is in which microbatch of which rank
- `preflight.py`: rows and packs, looked at before a start
- `batches.py`: samples to tensors
"""
