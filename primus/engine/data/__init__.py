"""From text to microbatches. This door imports nothing: all but the samplers and the loader start without torch.

- `indexed.py`, `index_check.py`: Megatron's .bin/.idx files, opened only if they agree with themselves
- `gpt_index.py`, `gpt_dataset.py`: which tokens make up which sample
- `blended.py`: several corpora in proportion
- `mock.py`: made-up documents
- `splits.py`: shares and sizes of train, validation, test
- `datasets.py`: configuration to datasets
- `masks.py`: loss mask, positions, attention mask
- `cache.py`: index arrays on disk
- `output.py`: places to write to, looked at beforehand
- `samplers.py`, `loader.py`: microbatches for a rank
- `tokenizer/`: tokenizers
"""
