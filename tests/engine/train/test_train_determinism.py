"""`deterministic_mode` sets what kernels and collectives read, and leaves the user's own choice alone."""

import os
from collections.abc import Iterator

import pytest
import torch

from primus.engine.train.determinism import be_deterministic
from primus.errors import InputError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield
    torch.use_deterministic_algorithms(False)


def test_what_is_not_chosen_is_set() -> None:
    be_deterministic()
    assert torch.are_deterministic_algorithms_enabled()
    assert (os.environ["NCCL_ALGO"], os.environ["CUBLAS_WORKSPACE_CONFIG"]) == ("Ring", ":4096:8")


def test_an_ordered_choice_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    be_deterministic()
    assert os.environ["NCCL_ALGO"] == "Tree"


def test_an_unordered_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "NVLS")
    with pytest.raises(InputError, match="NCCL_ALGO=NVLS; unset it, or use Tree, Ring"):
        be_deterministic()
