"""`--dry-run` with a world that is not there: the mesh in a picture, one rank down to its tensors, and what is refused."""

import os
import re
import tempfile

import pytest

from primus.core.launch.rehearse import rehearse
from primus.errors import InputError

START = ("train", "pretrain", "--config", "tiny.yaml")
WORLD = ("tensor_model_parallel_size=4", "pipeline_model_parallel_size=2", "global_batch_size=256", "num_layers=4")


def _rows(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]


def test_a_rank_of_a_large_world_is_built_and_leaves_nothing_behind(primus, became, folder, monkeypatch):
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    experts = ("num_experts=8", "moe_layer_freq=[0,0,0,1]", "expert_model_parallel_size=2")
    words = (*WORLD, *experts, "use_distributed_optimizer=true")
    outcome = primus(*START, "--dry-run", "--world-size", "1024", "--rank", "600", *words)
    assert (outcome.code, became) == (0, []), outcome.err
    rows = _rows(outcome.out)
    assert "mesh tp 4 x cp 1 x pp 2 x dp 128 = 1024 ranks; experts: tp 4 x ep 2 x pp 2 x dp 64" in rows
    assert "rank 600 of 1024: tensor 0 of 4, context 0 of 1, pipeline 1 of 2, data 22 of 128, expert 0 of 2" in rows
    assert "data of experts 64 11 512-1016 by 8" in rows
    assert "pipeline 2 1 88, 600" in rows
    assert "data 128 22 512-1020 by 4" in rows
    assert "decoder.layers.*.mlp.linear_fc2.weight 1 256 x 176 256 x 704 float32" in rows
    assert "decoder.layers.*.mlp.experts.linear_fc2.weight 1 4 x 256 x 176 8 x 256 x 704 float32" in rows
    assert any(row.startswith("pipeline 2 between stages receive 2 ") for row in rows)
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yaml", "tmp"]
    assert not list((folder / "tmp").iterdir())


def test_the_mesh_is_a_picture(primus):
    rows = _rows(
        primus(*START, "--dry-run", "--nproc-per-node", "8", *WORLD[:2], "context_parallel_size=1", "num_layers=4").out
    )
    assert "pipeline holds data 0" in rows
    assert "0 embedding, layers 0-1 0-3" in rows
    assert "1 layers 2-3, output 4-7" in rows


def test_a_wide_picture_is_cut_and_keeps_the_rank_that_is_asked_for(primus, monkeypatch):
    monkeypatch.setattr("primus.cli.run._rehearse", lambda *_: None)
    rows = _rows(primus(*START, "--dry-run", "--world-size", "1024", "--rank", "600", *WORLD).out)
    assert "pipeline holds data 0 data 1 data 2 ... data 22 ... data 127" in rows
    assert "1 layers 2-3, output 512-515 516-519 520-523 >600-603 1020-1023" in rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--world-size", "8"), "--world-size 8: ranks that do not run are looked at with --dry-run"),
        (("--rank", "0"), "--rank 0: ranks that do not run are looked at with --dry-run"),
        (("--dry-run", "--world-size", "8", "--nnodes", "2"), "--world-size 8 says how many ranks there are; leave out"),
        (("--dry-run", "--world-size", "0"), "--world-size 0 must be at least 1"),
        (("--dry-run", "--world-size", "8", "--rank", "8"), "--rank 8 is none of the run's ranks, 0 to 7"),
        (("--dry-run", "--rank", "1"), "--rank 1 is none of the run's ranks, 0 to 0"),
        (("--dry-run", "--world-size", "9", "tensor_model_parallel_size=2"), "the run has 9 processes"),
        (("--dry-run", "--world-sise=9",), "--world-sise is no option of this command and no key. Did you mean --world-size?"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_refused(primus, became, folder, words, message):
    outcome = primus(*START, *words)
    assert (outcome.code, became) == (2, [])
    assert message in outcome.err
    assert sorted(path.name for path in folder.iterdir()) == ["tiny.yaml"]


def test_a_rank_under_a_launcher_cannot_look_at_another_world(primus, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    outcome = primus(*START, "--dry-run", "--world-size", "8")
    assert outcome.code == 2
    assert "--world-size 8 cannot be used here: RANK is set (0)" in outcome.err


def test_of_several_ranks_one_tells_the_plan(primus, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert primus(*START, "--dry-run", "--rank", "0").out == ""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr("primus.cli.run._rehearse", lambda *_: None)
    assert "= 2 ranks" in primus(*START, "--dry-run", "--rank", "1").out


def test_a_rehearsal_that_is_refused_says_why():
    with pytest.raises(InputError, match="is an experiment"):
        rehearse("modules: {}\n", rank=0, world_size=1, env=os.environ)
