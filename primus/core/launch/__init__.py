"""From a container to running ranks, without torch in this process.

- `options.py`: `LaunchOptions`, what the command line asks for
- `place.py`: `find_place`: alone, parent of the ranks here, or a rank under torchrun or SLURM
- `rehearse.py`: `rehearse`: what one rank of a run would hold, found out in a process of its own
- `start.py`: `start`: writes `<run>/config.yaml` and becomes the run
"""

from primus.core.launch.options import LaunchOptions
from primus.core.launch.place import Place, check_numbers, find_place
from primus.core.launch.start import become, start

__all__ = ["LaunchOptions", "Place", "become", "check_numbers", "find_place", "start"]
