"""The flat keys that `framework: megatron` accepts: one row each, with type, choices, status, target and meaning.

`KEYS` is the name to use. Defaults stand in the presets under `primus/configs`, never here.

- `table.py`: `KEYS`, all rows: the reference page's in its order, then those of families
- `sections.py`: the chapters' titles
- `row.py`: how a row is written
- `module.py`, `training.py`, `precision.py`, `optimizer.py`: the run (sections 1 to 4)
- `distribution.py`, `model_parallel.py`, `tp_overlap.py`: ranks (5)
- `checkpointing.py`, `data.py`, `recompute.py`, `logging_.py`, `profiling.py`: around the model (6 to 9)
- `architecture.py`, `tokenizer.py`, `fusion.py`, `mla.py`, `moe.py`, `softcap.py`: the model (10)
- `turbo.py`, `zero_bubble.py`, `primus_pipeline.py`: Primus' own additions (11)
- `families.py`: keys of single model families, beyond the reference page (14)
- `rl.py`, `straggler.py`, `inference.py`, `resilience.py`: around training (12, 13)
- `vision.py`, `retro.py`, `dino.py`, `biencoder.py`: other model families (13)
"""

from primus.backends.megatron.keys.sections import SECTIONS
from primus.backends.megatron.keys.table import KEYS

__all__ = ["KEYS", "SECTIONS"]
