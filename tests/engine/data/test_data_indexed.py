"""Indexed token files: bytes, refusals, and what an interrupted writer leaves behind."""

import builtins
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus.engine.data.indexed import IndexedDataset, IndexedDatasetBuilder, best_dtype, merge
from primus.errors import InputError

DOCUMENTS = [[11, 12, 13, 0], [21, 22, 0], [31, 32, 33, 34, 0], [41, 0], [51, 52, 53, 54, 55, 0]]
UINT16, INT32 = np.dtype(np.uint16), np.dtype(np.int32)


def write(prefix: Path, documents: list[list[int]], dtype: "np.dtype[np.generic]" = UINT16) -> Path:
    with IndexedDatasetBuilder(prefix, dtype) as builder:
        for document in documents:
            builder.add_document(document)
    return prefix


def read(prefix: Path) -> list[list[int]]:
    return [sequence.tolist() for sequence in IndexedDataset(prefix)]


def test_files_have_the_published_bytes(tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    index = (tmp_path / "d.idx").read_bytes()
    expected = bytes.fromhex("4d4d4944494458 0000 0100000000000000 08 0500000000000000 0600000000000000")
    expected += np.array([4, 3, 5, 2, 6], "<i4").tobytes() + np.array([0, 8, 14, 24, 28], "<i8").tobytes()
    assert index == expected + np.arange(6, dtype="<i8").tobytes()
    assert len(index) == 142
    tokens = (tmp_path / "d.bin").read_bytes()
    assert len(tokens) == 40
    assert tokens[:10] == bytes.fromhex("0b00 0c00 0d00 0000 1500")


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, UINT16), (65_537, INT32), (80_000, INT32)])
def test_dtype_is_the_smallest_that_holds_every_id(vocab_size: int, dtype: "np.dtype[np.generic]", tmp_path: Path) -> None:
    assert best_dtype(vocab_size) == dtype
    ids = [i for i in (0, 65_535, 65_536, 70_000) if i < vocab_size]
    assert read(write(tmp_path / "d", [ids], best_dtype(vocab_size))) == [ids]


@pytest.mark.parametrize("ids", [[1, 65_536], np.array([1, 65_536]), np.array([-1])], ids=["list", "array", "negative"])
def test_ids_beyond_the_dtype_are_refused_and_leave_nothing(ids: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds uint16; ids from .* do not fit"):
        write(tmp_path / "d", [ids])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mmap", [True, False])
def test_parts_of_a_sequence_are_read(mmap: bool, tmp_path: Path) -> None:
    dataset = IndexedDataset(write(tmp_path / "d", DOCUMENTS), mmap=mmap)
    assert dataset.get(2, 1, 3).tolist() == [32, 33]
    assert dataset.get(4, 4).tolist() == [55, 0]
    assert dataset.head(6).tolist() == [11, 12, 13, 0, 21, 22]


def test_dataset_travels_to_another_process_as_a_name(tmp_path: Path) -> None:
    dataset = IndexedDataset(write(tmp_path / "d", [[1] * 50_000]))
    data = pickle.dumps(dataset)
    assert len(data) < 1000
    assert pickle.loads(data)[0].tolist() == [1] * 50_000


def test_empty_documents_and_empty_datasets_are_read(tmp_path: Path) -> None:
    assert read(write(tmp_path / "d", [[], [1, 2], [], [3], []])) == [[], [1, 2], [], [3], []]
    assert read(write(tmp_path / "e", [])) == []


@pytest.mark.parametrize("mmap", [True, False])
def test_bytes_behind_the_last_sequence_are_passed_over(mmap: bool, tmp_path: Path) -> None:
    write(tmp_path / "d", [[1, 2], [3]], INT32)
    with (tmp_path / "d.bin").open("ab") as file:
        file.write(b"\xff" * 5)
    dataset = IndexedDataset(tmp_path / "d", mmap=mmap)
    assert [dataset[0].tolist(), dataset[1].tolist()] == [[1, 2], [3]]
    assert dataset.head(9).tolist() == [1, 2, 3]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nope: .*nope\.idx does not exist; a dataset is a prefix"):
        IndexedDataset(tmp_path / "nope")
    write(tmp_path / "d", DOCUMENTS)
    (tmp_path / "d.bin").unlink()
    with pytest.raises(InputError, match=r"d\.bin does not exist"):
        IndexedDataset(tmp_path / "d")


def test_damaged_files_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    index, tokens = (tmp_path / "d.idx").read_bytes(), (tmp_path / "d.bin").read_bytes()
    (tmp_path / "d.bin").write_bytes(tokens[:-3])
    with pytest.raises(InputError, match=r"d\.bin is truncated: the index asks for 40 bytes, the file has 37"):
        IndexedDataset(tmp_path / "d")
    for damaged, message in (
        (b"", "is not an index of tokens"),
        (b"XX" + index[2:], "is not an index of tokens"),
        (index[:9] + b"\x02" + index[10:], "version 2 with dtype code 8 is unknown"),
        (index[:17] + b"\x63" + index[18:], "version 1 with dtype code 99 is unknown"),
        (index[:100], "is truncated: 100 bytes instead of 142"),
        (index[:17] + b"\x07" + index[18:], r"d\.idx: its \.bin holds float32 numbers, not the ids of tokens"),
    ):
        (tmp_path / "d.idx").write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            IndexedDataset(tmp_path / "d")


@pytest.mark.parametrize(
    ("array", "entry", "value", "message"),
    [
        ("lengths", 2, -5, "the length of sequence 2 is -5"),
        ("lengths", 2, 2_000_000_000, "sequence 3 starts at byte 24, but those before it end at byte 4000000014"),
        ("offsets", 0, 8, "sequence 0 starts at byte 8, but those before it end at byte 0"),
        ("offsets", 1, 1 << 40, "sequence 1 starts at byte 1099511627776, but those before it end at byte 8"),
        ("offsets", 3, -24, "sequence 3 starts at byte -24, but those before it end at byte 24"),
        ("offsets", 4, 29, "sequence 4 starts at byte 29, but those before it end at byte 28"),
        ("documents", 0, 1, "its first document starts at sequence 1, not at 0"),
        ("documents", 1, 3, "document 1 reaches from sequence 3 to 2"),
        ("documents", 3, 1 << 60, f"document 3 reaches from sequence {1 << 60} to 4"),
        ("documents", 5, 4, "its documents end at sequence 4, but it has 5"),
        ("documents", 5, 1 << 60, f"its documents end at sequence {1 << 60}, but it has 5"),
    ],
)
@pytest.mark.parametrize("chunk", [2, 1 << 16])
def test_an_index_that_contradicts_itself_is_refused_by_entry(
    array: str, entry: int, value: int, message: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("primus.engine.data.index_check._CHUNK", chunk)
    write(tmp_path / "d", DOCUMENTS)
    assert read(tmp_path / "d") == DOCUMENTS
    index = bytearray((tmp_path / "d.idx").read_bytes())
    start, dtype = {"lengths": (34, "<i4"), "offsets": (54, "<i8"), "documents": (94, "<i8")}[array]
    at = start + entry * np.dtype(dtype).itemsize
    index[at : at + np.dtype(dtype).itemsize] = np.array([value], dtype).tobytes()
    (tmp_path / "d.idx").write_bytes(index)
    with pytest.raises(InputError, match=rf"{tmp_path}/d\.idx is damaged: {message}"):
        IndexedDataset(tmp_path / "d")


def test_a_last_sequence_that_reaches_beyond_the_tokens_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    index = (tmp_path / "d.idx").read_bytes()
    (tmp_path / "d.idx").write_bytes(index[:50] + b"\x07" + index[51:])
    with pytest.raises(InputError, match=r"d\.bin is truncated: the index asks for 42 bytes, the file has 40"):
        IndexedDataset(tmp_path / "d")


def test_an_index_without_documents_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    index = (tmp_path / "d.idx").read_bytes()
    (tmp_path / "d.idx").write_bytes(index[:26] + bytes(8) + index[34:])
    with pytest.raises(InputError, match=r"d\.idx is damaged: it has no array of documents"):
        IndexedDataset(tmp_path / "d")


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_files_that_may_not_be_read_are_named(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", DOCUMENTS)
    opened = io.open

    def refuse(file: Any, *words: Any, **more: Any) -> Any:
        if str(file).endswith(suffix):
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *words, **more)

    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(InputError, match=rf"dataset {tmp_path}/d: {tmp_path}/d\{suffix} cannot be read: Permission denied"):
        IndexedDataset(tmp_path / "d")


def test_a_folder_that_may_not_be_entered_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match=rf"{tmp_path}/d\.idx cannot be read: Permission denied"):
        IndexedDataset(tmp_path / "d")


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_files_name_for_a_prefix_is_answered_with_the_prefix(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    with pytest.raises(InputError, match=rf"d\{suffix}: a dataset is named by its prefix, without \.bin or \.idx; use .*/d$"):
        IndexedDataset(tmp_path / f"d{suffix}")


def test_interrupted_writing_keeps_the_dataset_that_was_there(tmp_path: Path) -> None:
    write(tmp_path / "d", DOCUMENTS)
    with pytest.raises(InputError):
        write(tmp_path / "d", [[9] * 100, [-1]])
    assert read(tmp_path / "d") == DOCUMENTS
    assert sorted(file.name for file in tmp_path.iterdir()) == ["d.bin", "d.idx"]


def test_what_a_file_holds_behind_its_last_document_is_not_merged(tmp_path: Path) -> None:
    for name, documents in (("a", DOCUMENTS[:2]), ("b", DOCUMENTS[2:])):
        write(tmp_path / name, documents)
    with (tmp_path / "a.bin").open("ab") as file:
        file.write(b"xyz")
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    assert read(tmp_path / "ab") == DOCUMENTS


def test_merged_datasets_stand_behind_one_another(tmp_path: Path) -> None:
    write(tmp_path / "a", DOCUMENTS[:2])
    with IndexedDatasetBuilder(tmp_path / "b", UINT16) as builder:
        builder.add_document(DOCUMENTS[2] + DOCUMENTS[3], [5, 2])
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "new" / "ab")
    assert read(tmp_path / "new" / "ab") == DOCUMENTS[:4]
    assert IndexedDataset(tmp_path / "new" / "ab").document_indices.tolist() == [0, 1, 2, 4]
    with pytest.raises(InputError, match=r"ab\.bin exists already"):
        merge([tmp_path / "a"], tmp_path / "new" / "ab")
    write(tmp_path / "c", [[1]], INT32)
    with pytest.raises(InputError, match=r"c holds int32, .*ab holds uint16; they cannot be merged"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "new" / "ab", overwrite=True)
    assert read(tmp_path / "new" / "ab") == DOCUMENTS[:4]
