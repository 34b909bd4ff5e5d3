"""From configuration to datasets: sources, splits, mock data, index caches shared and apart."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

from primus.engine.config import Blend, DatasetConfig
from primus.engine.data.cache import cached_arrays
from primus.engine.data.datasets import Dataset, Datasets, build_datasets
from primus.engine.data.gpt_dataset import GPTDataset, SampleRules
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.data.mock import MockCorpus
from primus.engine.data.splits import Sizes
from primus.errors import InputError, RunError

RULES = SampleRules(seq_length=4, seed=1, eod=0)


def corpus(prefix: Path, documents: int, first: int = 1) -> str:
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        for number in range(first, first + documents):
            builder.add_document([number] * 5)
    return str(prefix)


def build(config: DatasetConfig, *, train: int = 0, valid: int | None = 0, test: int = 0, several: bool = False) -> Datasets:
    sizes = Sizes(train=train, valid=valid, test=test)
    return build_datasets(config, rules=RULES, vocab_size=100, sizes=sizes, multiple_validation_sets=several)


def values(dataset: Dataset | None) -> set[int]:
    assert dataset is not None
    return {int(token) for item in range(len(dataset)) for token in dataset[item]["tokens"]}


def test_splits_of_one_source_share_no_document(tmp_path: Path) -> None:
    config = DatasetConfig(blend=Blend(prefixes=(corpus(tmp_path / "d", 40),)), split="80,10,10")
    datasets = build(config, train=100, valid=20, test=20)
    assert values(datasets.train) == set(range(1, 33))
    assert values(datasets.valid[0]) == set(range(33, 37))
    assert values(datasets.test) == set(range(37, 41))


def test_a_split_without_documents_is_refused_by_name(tmp_path: Path) -> None:
    config = DatasetConfig(blend=Blend(prefixes=(corpus(tmp_path / "d", 9),)), split="969,30,1", cache_path=str(tmp_path))
    for kind in ("valid", "test"):
        with pytest.raises(InputError, match=rf"the {kind} split asks for 7 samples, .*d holds 0 documents with 0 tokens"):
            build(config, **{kind: 7})
    with pytest.raises(InputError, match=r"the valid split asks for an epoch of samples"):
        build(config, valid=None)
    assert build(config, train=5).valid == ()


def test_an_epoch_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    config = DatasetConfig(valid_blend=Blend(prefixes=(corpus(tmp_path / "d", 1),)))
    rules = SampleRules(seq_length=5, seed=1, eod=0)
    with pytest.raises(InputError, match=r"valid split .* holds 5 tokens, less than one sample of seq_length 5"):
        build_datasets(config, rules=rules, vocab_size=9, sizes=Sizes(train=0, valid=None, test=0))


def test_a_split_without_a_source_has_no_dataset(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", 9)
    assert build(DatasetConfig(blend=Blend(prefixes=(prefix,)), split="99,1,0"), train=3, test=5).test is None
    assert build(DatasetConfig(train_blend=Blend(prefixes=(prefix,))), train=3, valid=5).valid == ()


def test_several_validation_sets_stand_side_by_side(tmp_path: Path) -> None:
    blend = Blend(prefixes=(corpus(tmp_path / "a", 4), corpus(tmp_path / "b", 6, first=50)))
    one = build(DatasetConfig(valid_blend=blend), valid=None)
    assert [len(dataset) for dataset in one.valid] == [4 + 7]
    both = build(DatasetConfig(valid_blend=blend), valid=None, several=True)
    assert [values(dataset) for dataset in both.valid] == [set(range(1, 5)), set(range(50, 56))]


def test_a_weight_on_the_only_prefix_changes_nothing_in_a_whole_pass(tmp_path: Path) -> None:
    blend = Blend(prefixes=(corpus(tmp_path / "d", 40),), weights=(0.5,))
    (valid,) = build(DatasetConfig(blend=blend, split="50,50,0"), valid=None).valid
    assert values(valid) == set(range(21, 41))


def test_the_only_prefix_of_a_split_needs_no_blend(tmp_path: Path) -> None:
    blend = Blend(prefixes=(corpus(tmp_path / "d", 9),), weights=(0.4,))
    assert isinstance(build(DatasetConfig(train_blend=blend), train=3).train, GPTDataset)


def test_mock_documents_count_from_one_to_the_end_token() -> None:
    corpus = MockCorpus(vocab_size=10, eod=9)
    lengths = np.random.default_rng(0).integers(1, 4096, size=100_000, dtype=np.int32)
    np.testing.assert_array_equal(corpus.sequence_lengths, lengths)
    assert corpus.get(0)[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert corpus.get(0)[-1] == 9
    assert corpus.get(0, 3, 5).tolist() == [4, 5]
    rules = SampleRules(seq_length=4096, seed=1, eod=9)
    sizes = Sizes(train=4, valid=None, test=4)
    datasets = build_datasets(DatasetConfig(mock_data=True), rules=rules, vocab_size=10, sizes=sizes)
    assert datasets.train is not None
    assert datasets.test is not None
    assert datasets.train[0]["tokens"].tolist() != datasets.test[0]["tokens"].tolist()


def test_an_index_is_built_once_and_again_when_its_corpus_changes(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "d", 9)
    config = DatasetConfig(train_blend=Blend(prefixes=(prefix,)), cache_path=str(tmp_path / "cache"))
    build(config, train=10)
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cache").iterdir()}
    assert len(before) == 4
    build(config, train=10)
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cache").iterdir()} == before
    with IndexedDatasetBuilder(tmp_path / "d", np.dtype(np.uint16)) as builder:
        builder.add_document([1] * 3)
        builder.add_document([2] * 42)
    train = build(config, train=10).train
    assert train is not None
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert values(train) == {1, 2}


def test_without_a_cache_folder_indices_lie_beside_the_data(tmp_path: Path) -> None:
    build(DatasetConfig(train_blend=Blend(prefixes=(corpus(tmp_path / "d", 9),))), train=10)
    assert len(list((tmp_path / "d" / "cache" / "GPTDataset_indices").iterdir())) == 4


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = DatasetConfig(
        train_blend=Blend(prefixes=(corpus(tmp_path / "d", 9),)), cache_path=str(tmp_path / "file" / "cache")
    )
    with pytest.raises(InputError, match=r"index cache folder .*file/cache cannot be used: .*set data_cache_path"):
        build(config, train=10)


def test_failed_writing_leaves_no_half_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path, array: np.ndarray) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(RunError, match="No space left"):
        cached_arrays(tmp_path, "x", {}, ["a"], lambda: [np.arange(3)])
    assert list(tmp_path.iterdir()) == []


DAMAGES = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[:-30],
    "garbage": lambda _: b"\x93NUMPY\x01\x00 no array at all" * 9,
    "one bit": lambda data: data[:200] + bytes([data[200] ^ 64]) + data[201:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["document", "sample", "shuffle"])
def test_a_damaged_index_is_built_anew_and_named(
    name: str, damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = DatasetConfig(train_blend=Blend(prefixes=(corpus(tmp_path / "d", 40),)), cache_path=str(tmp_path / "cache"))
    train = build(config, train=30).train
    assert train is not None
    expected = [train[item]["tokens"].tolist() for item in range(30)]
    (file,) = (tmp_path / "cache").glob(f"*-{name}_index.npy")
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(damage(whole))
    train = build(config, train=30).train
    assert train is not None
    assert [train[item]["tokens"].tolist() for item in range(30)] == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"index cache file {file} is damaged, or of an earlier version: it is built anew"
    ]
    assert file.read_bytes() == whole
    assert len(list((tmp_path / "cache").iterdir())) == 4


@pytest.mark.parametrize("foreign", [100, -1])
def test_a_sample_with_an_id_outside_the_vocabulary_names_its_document(foreign: int, tmp_path: Path) -> None:
    with IndexedDatasetBuilder(tmp_path / "d", np.dtype(np.int32)) as builder:
        for number in range(9):
            builder.add_document([1, 99, 5, foreign if number == 7 else 3])
    config = DatasetConfig(train_blend=Blend(prefixes=(str(tmp_path / "d"),)), cache_path=str(tmp_path / "cache"))
    train = build(config, train=6).train
    assert train is not None
    place = f"document 7 of dataset {tmp_path}/d holds the id {foreign}, but the tokenizer has 100 ids"
    with pytest.raises(InputError, match=place):
        list(map(train.text, range(6)))


def test_datasets_travel_to_loader_processes(tmp_path: Path) -> None:
    train = build(DatasetConfig(train_blend=Blend(prefixes=(corpus(tmp_path / "d", 9),))), train=10).train
    assert train is not None
    copy = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(copy[3]["tokens"], train[3]["tokens"])


def build_as_node(rank: int, prefix: str, cache: str, log: str) -> list[list[int]]:
    """Build like a rank of a run does: the first one first, the others behind a barrier."""
    import torch.distributed as dist

    from primus.engine.data import gpt_dataset

    original = gpt_dataset.build_gpt_index

    def counted(*arguments, **named):
        with Path(log).open("a") as file:
            file.write(f"{rank}\n")
        return original(*arguments, **named)

    gpt_dataset.build_gpt_index = counted
    os.environ["LOCAL_RANK"] = "0"
    config = DatasetConfig(train_blend=Blend(prefixes=(prefix,)), cache_path=cache.format(rank=rank))
    train = build(config, train=30).train if rank == 0 else None
    dist.barrier()
    train = train or build(config, train=30).train
    assert train is not None
    return [train[item]["tokens"].tolist() for item in range(30)]


@pytest.mark.parametrize(("folders", "builders"), [("cache-{rank}", "01"), ("cache", "0")], ids=["apart", "shared"])
def test_a_node_that_does_not_see_the_index_builds_its_own(folders: str, builders: str, tmp_path: Path) -> None:
    prefix, log = corpus(tmp_path / "d", 9), tmp_path / "log"
    first, second = run_ranks(build_as_node, 2, prefix, str(tmp_path / folders), str(log))
    assert first == second
    assert "".join(sorted(log.read_text().split())) == builders
