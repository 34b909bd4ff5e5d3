"""The end of a rank's process: everything that an end asks for, but not the interpreter's finalisation."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import atexit, logging, sys, threading, time
from primus.engine.leave import run_program

class Kept:
    def __del__(self):
        print("finalised", file=sys.stderr)

kept = Kept()

def main(arguments):
    atexit.register(lambda: (print("exit function"), logging.getLogger("x").warning("logged by it")))
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
    logging.basicConfig(filename=arguments[0])
    print("main")
    return int(arguments[1])

run_program(main)
"""


def test_a_process_ends_with_its_code_after_threads_and_exit_functions_and_is_not_finalised(tmp_path: Path) -> None:
    for code in (0, 3):
        done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "log", str(code)], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (code, "main\nthread\nexit function\n", "")
    assert (tmp_path / "log").read_text().count("logged by it") == 2


def test_the_worker_ends_this_way(tmp_path: Path) -> None:
    """`sitecustomize` is imported before any program and kept until the interpreter's end."""
    watch = "import sys\nclass Kept:\n    def __del__(self):\n        sys.stderr.write('finalised')\nkept = Kept()\n"
    (tmp_path / "sitecustomize.py").write_text(watch)
    env = {"PYTHONPATH": str(tmp_path)}
    plain = subprocess.run([sys.executable, "-c", ""], capture_output=True, text=True, env=env)
    assert plain.stderr == "finalised"
    done = subprocess.run([sys.executable, "-m", "primus.engine.worker"], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert "finalised" not in done.stderr
