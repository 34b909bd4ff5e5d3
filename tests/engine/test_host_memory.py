"""Freed memory is used again."""

import subprocess
import sys

import pytest

CODE = """
import resource, sys
import torch
from primus.engine.host_memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print(-1)
    raise SystemExit
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def page_faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow  # two processes that import torch
def test_kept_memory_is_not_fetched_page_by_page_again() -> None:
    kept = page_faults("keep")
    if kept < 0:
        pytest.skip("needs glibc's allocator")
    assert kept * 20 < page_faults("plain")


TRIM = """
import torch
from primus.engine.host_memory import keep_freed_memory, return_freed_memory
if not keep_freed_memory():
    print(-1)
    raise SystemExit
def resident():
    return int(open("/proc/self/statm").read().split()[1])
torch.ones(1 << 26)
before = resident()
return_freed_memory()
print(before - resident())
"""


@pytest.mark.slow  # a process that imports torch
def test_kept_memory_is_given_back_when_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", TRIM], capture_output=True, text=True, check=True)
    pages = int(done.stdout)
    if pages < 0:
        pytest.skip("needs glibc's allocator")
    assert pages * 4096 > 200 << 20
