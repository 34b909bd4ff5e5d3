"""Runs on rows: their losses are those of every layout and of packs, and a resumed run goes on bitwise."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from runs import build_container, train, train_rank
from test_golden_layouts import in_float64

from primus.engine.config import ConfigContainer, PackingConfig, SFTConfig
from primus.engine.data.sft.packing import pack
from primus.engine.data.sft.samples import Sample, Samples

KEYS = {"calculate_per_token_loss": True, "train_iters": 3, "global_batch_size": 4, "micro_batch_size": 1, "seq_length": 32}


@pytest.fixture
def rows(tmp_path: Path) -> SFTConfig:
    random = np.random.default_rng(7)

    def words(most: int) -> str:
        return " ".join(map(str, random.integers(1, 90, random.integers(1, most)).tolist()))

    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"input": words(20), "output": words(9)}) + "\n" for _ in range(24)))
    return SFTConfig(train=str(file), seed=5, pad_multiple=8)


def losses(folder: Path, name: str, rows: SFTConfig, *, ranks: int = 1, **keys: Any) -> list[float]:
    def on_rows(config: ConfigContainer) -> ConfigContainer:
        config = in_float64(config)
        return replace(config, dataset=replace(config.dataset, sft=rows))

    found = train(folder, name, {**KEYS, **keys}, ranks=ranks, change=on_rows)
    return [row["lm_loss"] for row in found if "lm_loss" in row]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        {"pipeline_model_parallel_size": 2},
        {"context_parallel_size": 2},
    ],
    ids=["dp2", "tp2", "pp2", "cp2"],
)
def test_the_losses_of_rows_are_those_of_every_layout(layout: dict[str, Any], rows: SFTConfig, tmp_path: Path) -> None:
    one = losses(tmp_path, "one", rows, micro_batch_size=2)
    assert losses(tmp_path, "two", rows, ranks=2, **layout) == pytest.approx(one, rel=1e-12)


def test_packs_have_the_loss_of_their_samples(rows: SFTConfig, tmp_path: Path) -> None:
    """One batch of all rows, so that both runs train on the same ones."""
    every = replace(rows, do_validation=False, val_proportion=None, order="single")
    apart = losses(tmp_path, "apart", every, train_iters=1, global_batch_size=24)
    packing = PackingConfig(size=32, algorithm="first_fit_decreasing")
    # Far fewer sequences: as many as a batch holds.
    found = losses(tmp_path, "packed", replace(every, packing=packing), train_iters=1, global_batch_size=_bins(every, packing))
    assert found == pytest.approx(apart, rel=1e-12)


def _bins(rows: SFTConfig, packing: PackingConfig) -> int:
    texts = [json.loads(line) for line in Path(rows.train).read_text().splitlines()]
    # The end token is a label and no input.
    lengths = [len(f"{row['input']} {row['output']}".split()) for row in texts]
    return len(pack(lengths, packing, seed=rows.seed))


def test_a_run_on_rows_goes_on_bitwise_with_loader_processes_too(rows: SFTConfig, tmp_path: Path) -> None:
    saved = {"save": str(tmp_path / "saved"), "save_interval": 3, "train_iters": 8, "eval_iters": 1, "eval_interval": 2}
    straight = losses(tmp_path, "straight", rows, **saved)
    step = {"load": str(tmp_path / "saved"), "ckpt_step": 3, "train_iters": 8, "eval_iters": 1, "eval_interval": 2}
    assert losses(tmp_path, "again", rows, num_workers=2, **step) == straight[3:]


def test_one_rank_tokenises_rows_to_pack_and_the_next_run_none(rows: SFTConfig, tmp_path: Path) -> None:
    config = in_float64(
        build_container(tmp_path, "packed", 2, {**KEYS, "train_iters": 1, "global_batch_size": 2, "eval_iters": 0})
    )
    packed = replace(rows, packing=PackingConfig(size=32), do_validation=False, val_proportion=None)
    config = replace(config, dataset=replace(config.dataset, sft=packed))
    assert run_ranks(_tokenised, 2, config) == [24, 0]
    assert run_ranks(_tokenised, 2, config) == [0, 0]


def _tokenised(rank: int, config: ConfigContainer) -> int:
    """Train as one of `run_ranks` and return how many rows this rank tokenised."""
    made: list[int] = []
    read = Samples.__getitem__

    def counted(self: Samples, number: int) -> Sample:
        made.append(number)
        return read(self, number)

    Samples.__getitem__ = counted  # type: ignore[method-assign]
    train_rank(rank, config)
    return len(made)
