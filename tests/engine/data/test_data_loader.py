"""Loaders: batches with and without worker processes, masks, signals, resumes."""

import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
import torch

from primus.engine.config import DatasetConfig
from primus.engine.data import workers as workers_module
from primus.engine.data.gpt_dataset import GPTDataset, SampleRules
from primus.engine.data.loader import Batch, Loader
from primus.engine.data.mock import MockCorpus
from primus.engine.data.samplers import Sampling
from primus.errors import InputError

RULES = SampleRules(seq_length=6, seed=1, eod=99)
CONFIG = DatasetConfig(mock_data=True)
CPU = torch.device("cpu")


def mock_set(rules: SampleRules = RULES) -> GPTDataset:
    corpus = MockCorpus(vocab_size=100, eod=rules.eod, num_documents=30)
    return GPTDataset(corpus, documents=(0, 30), num_samples=50, split="train", rules=rules)


def batches(
    dataset: GPTDataset, config: DatasetConfig = CONFIG, *, consumed: int = 0, in_order: bool = False
) -> Iterator[Batch]:
    sampling = Sampling(total=len(dataset), micro_batch_size=3, rank=1, size=2)
    return Loader(dataset, config, sampling=sampling, device=CPU, in_order=in_order).batches(consumed)


def texts(stream: Iterator[Batch], count: int) -> list[list[list[int]]]:
    return [batch.tokens.tolist() for batch in islice(stream, count)]


def test_batches_hold_the_samples_of_this_rank_in_order() -> None:
    dataset = mock_set()
    for number, batch in enumerate(islice(batches(dataset), 3)):
        samples = [dataset[6 * number + 3 + row] for row in range(3)]
        for name in ("tokens", "labels", "loss_mask", "position_ids"):
            tensor = getattr(batch, name)
            assert tensor.tolist() == [sample[name].tolist() for sample in samples]
            assert tensor.is_contiguous()
        assert (batch.tokens.dtype, batch.loss_mask.dtype) == (torch.int64, torch.float32)
        assert batch.attention_mask is None


@pytest.mark.parametrize(
    "rules",
    [replace(RULES, eod_mask_loss=True), replace(RULES, reset_position_ids=True), replace(RULES, with_attention_mask=True)],
)
def test_masks_that_depend_on_the_tokens_are_made_for_each_sample(rules: SampleRules) -> None:
    dataset = mock_set(replace(rules, seq_length=600))
    batch = next(batches(dataset))
    for row in range(3):
        sample = dataset[3 + row]
        assert torch.equal(batch.loss_mask[row], torch.from_numpy(sample["loss_mask"]))
        assert torch.equal(batch.position_ids[row], torch.from_numpy(sample["position_ids"]))
        if batch.attention_mask is not None:
            assert batch.attention_mask.shape == (3, 1, 600, 600)
            assert torch.equal(batch.attention_mask[row], torch.from_numpy(sample["attention_mask"]))


def test_a_stream_resumes_by_consumed_samples() -> None:
    dataset = mock_set()
    for kind in ("single", "cyclic"):
        config = replace(CONFIG, dataloader_type=kind)
        straight = texts(batches(dataset, config), 7)
        assert texts(batches(dataset, config, consumed=12), 5) == straight[2:]


def test_in_order_walks_the_set_whatever_the_loader_type() -> None:
    dataset = mock_set()
    cyclic = replace(CONFIG, dataloader_type="cyclic")
    assert texts(batches(dataset, cyclic, in_order=True), 4) == texts(batches(dataset), 4)
    assert texts(batches(dataset, cyclic), 4) != texts(batches(dataset), 4)


@pytest.mark.parametrize("eod_mask_loss", [False, True])
def test_what_fills_the_last_microbatch_of_a_whole_pass_does_not_count(eod_mask_loss: bool) -> None:
    dataset = mock_set(replace(RULES, eod_mask_loss=eod_mask_loss))
    total = 16  # of the third six, the second rank's last two are missing
    sampling = Sampling(total=total, micro_batch_size=3, rank=1, size=2)
    stream = Loader(dataset, CONFIG, sampling=sampling, device=CPU, in_order=True).batches(0)
    *_, before, last, again = islice(stream, sampling.num_whole + 1)
    assert last.loss_mask[0].tolist() == dataset[total - 1]["loss_mask"].tolist()
    assert last.loss_mask[1:].sum() == 0
    assert last.tokens.shape == before.tokens.shape
    assert again.tokens.tolist() == [dataset[item]["tokens"].tolist() for item in (3, 4, 5)]
    assert again.loss_mask.sum() > 12


def test_workers_give_the_same_batches_and_survive_the_groups_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_useful_workers", lambda wanted: wanted)
    dataset = mock_set()
    expected = texts(batches(dataset), 40)
    before = set(multiprocessing.active_children())
    stream = batches(dataset, replace(CONFIG, num_workers=2))
    found = texts(stream, 5)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    for worker in workers:
        for number in (signal.SIGTERM, signal.SIGINT):
            assert worker.pid is not None
            os.kill(worker.pid, number)
    assert found + texts(stream, 35) == expected
    assert all(worker.is_alive() for worker in workers)
    del stream
    assert not workers & set(multiprocessing.active_children()), "they outlive what they work for"


def test_more_workers_than_cores_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    assert [workers_module._useful_workers(wanted) for wanted in (0, 2, 3, 8)] == [0, 2, 3, 3]


def test_making_batches_leaves_the_runs_random_numbers_alone() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    texts(batches(mock_set(), replace(CONFIG, num_workers=1, dataloader_type="cyclic")), 3)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow  # imports torch in a process of its own
def test_a_process_ends_although_its_workers_ignore_signals() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/engine/data')\n"
        "from test_data_loader import CONFIG, batches, mock_set, replace\n"
        "stream = batches(mock_set(), replace(CONFIG, num_workers=2))\n"
        "next(stream); raise SystemExit(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_sample_holds_wrongly_is_told_without_a_workers_traceback(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_useful_workers", lambda wanted: wanted)
    stream = batches(mock_set(replace(RULES, vocab_size=99)), replace(CONFIG, num_workers=workers))
    with pytest.raises(InputError) as caught:
        texts(stream, 50)
    message = r"document \d+ of dataset mock data holds the id 99, but the tokenizer has 99 ids, from 0 on: .*"
    assert re.fullmatch(message, str(caught.value))


def test_a_worker_does_not_outlive_a_killed_main_process() -> None:
    fork = multiprocessing.get_context("fork")
    ending = fork.RawValue("b", 0)
    read, write = os.pipe()

    def work(main: int) -> None:
        workers_module._start_worker(ending, main, 0)
        os.write(write, b"r")
        time.sleep(60)

    def be_killed() -> None:
        fork.Process(target=work, args=(os.getpid(),)).start()
        time.sleep(60)

    late = fork.Process(target=work, args=(os.getppid(),))
    late.start()
    late.join(10)
    assert late.exitcode == -signal.SIGKILL
    main = fork.Process(target=be_killed)
    main.start()
    os.close(write)
    assert os.read(read, 2) == b"r"
    main.kill()
    main.join()
    assert select.select([read], [], [], 10)[0], "the worker holds the pipe open"
    assert os.read(read, 1) == b""
    os.close(read)
