"""The command line starts without torch, also where there is no accelerator and no optional package."""

import subprocess
import sys

import pytest

import primus

CHECK = """
import sys
sys.argv = ["primus", *{words!r}]
from primus.cli.main import main
code = 0
try:
    main()
except SystemExit as left:
    code = left.code
loaded = sorted({{"torch", "transformers", "matplotlib", "wandb"}} & set(sys.modules))
assert not loaded, loaded
sys.exit(code)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("--help",),
        ("--version",),
        ("config", "explain", "lr"),
        ("config", "coverage"),
        ("config", "show", "tiny.yaml"),
        ("config", "validate", "tiny.yaml"),
        ("train", "pretrain", "--help"),
        ("train", "pretrain", "--config", "tiny.yaml", "--dry-run"),
        ("data", "--help"),
    ],
    ids=" ".join,
)
def test_no_verb_that_looks_imports_torch(words):
    done = subprocess.run([sys.executable, "-c", CHECK.format(words=words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_command_ends_with_the_exit_code_of_a_mistake():
    command = [sys.executable, "-m", "primus.cli.main", "config", "explain", "nokey"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nokey is not a key")


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "primus", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == primus.__version__
