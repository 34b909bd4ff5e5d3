"""Archives hold what torch.save would write, and are read in place."""

import io

import pytest
import torch

from primus.engine.checkpoint.archive import alone, load_archive, map_archive, save_archive

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8]


def archive(value: object) -> memoryview:
    buffer = io.BytesIO()
    save_archive(value, buffer)
    return memoryview(bytearray(buffer.getvalue()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (7, 1, 300)])
def test_a_mapped_tensor_is_the_saved_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 100, shape).to(dtype)
    data = archive(tensor)
    assert torch.equal(map_archive(data, dtype, shape), tensor)
    assert torch.equal(load_archive(data), tensor)  # type: ignore[arg-type]


def test_torch_reads_what_was_saved() -> None:
    value = {"a": torch.arange(3), "b": [1, "x", None]}
    read = torch.load(io.BytesIO(archive(value)), weights_only=True)
    assert read["a"].tolist() == [0, 1, 2]
    assert read["b"] == [1, "x", None]


def test_a_mapped_tensor_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"12 bytes are no torch\.float32 tensor of shape \[4\]"):
        map_archive(archive(torch.zeros(3)), torch.float32, (4,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_part_of_a_long_buffer_is_saved_without_the_rest(dtype: torch.dtype) -> None:
    flat = torch.arange(100_000).to(dtype)
    part = flat[10:22].view(3, 4)
    data = alone(part)
    assert torch.equal(data, part)
    assert data.data_ptr() == part.data_ptr(), "no copy"
    assert len(archive(data)) < 3000


def test_a_column_of_a_matrix_is_copied() -> None:
    part = torch.arange(20.0).view(4, 5)[:, 1:3]
    data = alone(part)
    assert torch.equal(data, part)
    assert data.untyped_storage().nbytes() == 8 * 4


def test_the_zip_checksum_is_left_out_here_and_nowhere_else() -> None:
    tensor = torch.ones(1000)
    plain = io.BytesIO()
    torch.save(tensor, plain)
    ours = archive(tensor)
    again = io.BytesIO()
    torch.save(tensor, again)
    assert plain.getvalue() == again.getvalue()
    assert bytes(ours) != plain.getvalue()
    assert len(ours) == len(plain.getvalue())
