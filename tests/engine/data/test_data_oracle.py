"""Files, indices and samples equal Megatron-Core's, integer by integer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus.engine.config import Blend, DatasetConfig
from primus.engine.data.blended import BlendedDataset
from primus.engine.data.datasets import build_datasets
from primus.engine.data.gpt_dataset import GPTDataset, SampleRules
from primus.engine.data.indexed import IndexedDataset, IndexedDatasetBuilder
from primus.engine.data.splits import Sizes

DATA = Path(__file__).parents[2] / "data" / "corpora"
REFERENCE = json.loads((DATA / "cases.json").read_text())
EOD = REFERENCE["eod_token"]


def blend_of(words: list[str] | None) -> Blend | None:
    if words is None:
        return None
    try:
        weights = tuple(float(word) for word in words[::2])
    except ValueError:
        return Blend(prefixes=tuple(str(DATA / word) for word in words))
    return Blend(prefixes=tuple(str(DATA / word) for word in words[1::2]), weights=weights)


def config_of(keys: dict[str, Any], cache: Path) -> DatasetConfig:
    return DatasetConfig(
        blend=blend_of(keys.get("data_path")),
        train_blend=blend_of(keys.get("train_data_path")),
        valid_blend=blend_of(keys.get("valid_data_path")),
        test_blend=blend_of(keys.get("test_data_path")),
        split=keys["split"],
        cache_path=str(cache),
    )


def check_gpt(dataset: GPTDataset, arrays: dict[str, Any], prefix: str) -> None:
    for name in ("document_index", "sample_index", "shuffle_index"):
        expected = arrays[f"{prefix}/{name}"]
        ours = getattr(dataset, name)
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected, err_msg=f"{prefix}/{name}")


@pytest.mark.parametrize("case", list(REFERENCE["cases"]))
def test_samples_equal_megatron_core(case: str, tmp_path: Path) -> None:
    reference, arrays = REFERENCE["cases"][case], np.load(DATA / f"{case}.npz")
    keys = reference["flat_keys"]
    rules = SampleRules(
        seq_length=keys["seq_length"],
        seed=keys["seed"],
        eod=EOD,
        eod_mask_loss=keys.get("eod_mask_loss", False),
        reset_position_ids=keys.get("reset_position_ids", False),
        reset_attention_mask=keys.get("reset_attention_mask", False),
        with_attention_mask=True,
    )
    sizes = Sizes(**dict(zip(("train", "valid", "test"), reference["num_samples_train_valid_test"], strict=True)))
    datasets = build_datasets(config_of(keys, tmp_path), rules=rules, vocab_size=512, sizes=sizes)
    ours = {"train": datasets.train, "valid": datasets.valid[0] if datasets.valid else None, "test": datasets.test}
    for split, expected in reference["splits"].items():
        dataset = ours[split]
        if expected is None:
            assert dataset is None
            continue
        assert dataset is not None
        assert len(dataset) == expected["length"]
        if isinstance(dataset, BlendedDataset):
            for name in ("dataset_index", "dataset_sample_index"):
                np.testing.assert_array_equal(getattr(dataset, name), arrays[f"{split}/{name}"])
            for number, part in enumerate(dataset._datasets):
                check_gpt(part, arrays, f"{split}/sub{number}")
        else:
            check_gpt(dataset, arrays, split)
        for item in range(expected["rows"]):
            sample = dataset[item]
            for name in ("tokens", "labels", "loss_mask", "position_ids"):
                np.testing.assert_array_equal(sample[name], arrays[f"{split}/{name}"][item], err_msg=f"{split} {item} {name}")
            if f"{split}/attention_mask_blocked" in arrays and item < len(arrays[f"{split}/attention_mask_blocked"]):
                np.testing.assert_array_equal(sample["attention_mask"], arrays[f"{split}/attention_mask_blocked"][item] != 0)


def test_masks_equal_megatron_core_under_all_flags() -> None:
    arrays = np.load(DATA / "masks.npz")
    for flags in REFERENCE["mask_function"]["combinations"]:
        for key in {name.split("/")[0] for name in arrays if name.split("/")[0].endswith(flags["key"].split("_")[1])}:
            tokens = arrays[f"{key}/tokens"]
            rules = SampleRules(
                seq_length=len(tokens),
                seed=0,
                eod=EOD,
                eod_mask_loss=flags["eod_mask_loss"],
                reset_position_ids=flags["reset_position_ids"],
                reset_attention_mask=flags["reset_attention_mask"],
                with_attention_mask=True,
            )
            made = rules.constants() | rules.masks(tokens)
            np.testing.assert_array_equal(made["loss_mask"], arrays[f"{key}/loss_mask"])
            np.testing.assert_array_equal(made["position_ids"], arrays[f"{key}/position_ids"])
            np.testing.assert_array_equal(made["attention_mask"], arrays[f"{key}/attention_mask_blocked"] != 0)


@pytest.mark.parametrize("name", ["corpus_a", "corpus_b", "corpus_c"])
@pytest.mark.parametrize("mmap", [True, False])
def test_files_are_read_and_written_byte_for_byte(name: str, mmap: bool, tmp_path: Path) -> None:
    source = IndexedDataset(DATA / name, mmap=mmap)
    with IndexedDatasetBuilder(tmp_path / "copy", source.dtype) as builder:
        for first, last in zip(source.document_indices[:-1], source.document_indices[1:], strict=True):
            sequences = [source[i] for i in range(first, last)]
            builder.add_document(np.concatenate(sequences), [len(s) for s in sequences])
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"copy{suffix}").read_bytes() == (DATA / f"{name}{suffix}").read_bytes()
