"""The command line: one file a verb. It imports no torch.

- `main.py`: the `primus` command and its exit codes
- `train.py`: `train pretrain | posttrain`
- `pretrain.py`: what `train pretrain` does
- `surroundings.py`: what a run reads and writes, looked at before it starts
- `dry_run.py`, `mesh_picture.py`: what `--dry-run` prints
- `rehearsal.py`: what it prints of one rank of a world that is not there
- `sizes.py`: sizes and rank lists as people read them
- `config/`: `config show | validate | explain | diff | coverage | docs`
- `data.py`: `data prepare | train-tokenizer | merge | show`
- `pipeline.py`: `pipeline show | plot | compare`
- `generate.py`: `generate`, a sample from a checkpoint
- `doors.py`: frameworks, their keys and builders
- `words.py`: KEY=VALUE words beside options
- `report.py`: errors and notices
"""
