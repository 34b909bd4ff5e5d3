"""What every test may rely on: without a GPU, Triton's kernels run in its interpreter."""

import os
from pathlib import Path

if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
    # Before anything imports triton, which reads it then and not again; torch's compiler is one that does.
    os.environ.setdefault("TRITON_INTERPRET", "1")
