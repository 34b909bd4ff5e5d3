"""From an experiment file to flat parameters that remember where they were set. Standard library and PyYAML only.

- `load.py`: `load_experiment`, the whole way
- `experiment.py`: `Experiment` and `Module`, what comes out
- `layout.py`: the two ways of writing an experiment file
- `presets.py`: where presets lie
- `extends.py`: a file with everything it extends
- `document.py`: one YAML file as values with their lines
- `words.py`: the command line's keys
- `substitute.py`: `${VAR}` and `${VAR:default}`
- `scalars.py`: numbers and bools as people write them
- `value.py`: `Value`, trees of values, merging
- `nearest.py`: suggestions for unknown words
"""

from primus.core.experiment.experiment import FILE_WORDS, META, Experiment, Module
from primus.core.experiment.load import load_experiment, load_presets
from primus.core.experiment.nearest import nearest
from primus.core.experiment.presets import settings_of, shipped_presets
from primus.core.experiment.value import Value, first, is_preset_source, shipped

__all__ = [
    "FILE_WORDS",
    "META",
    "Experiment",
    "Module",
    "Value",
    "first",
    "is_preset_source",
    "load_experiment",
    "load_presets",
    "nearest",
    "settings_of",
    "shipped",
    "shipped_presets",
]
