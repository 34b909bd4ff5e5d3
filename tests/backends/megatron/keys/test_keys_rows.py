"""The key table is the reference page, its 585 keys, then keys of families: each with type, status, target and a meaning."""

import dataclasses
import json
import typing
from collections import Counter
from pathlib import Path

import pytest

from primus.backends.megatron.keys import KEYS
from primus.engine.config import ConfigContainer

REFERENCE = json.loads((Path(__file__).parents[3] / "data/megatron/keys.json").read_text(encoding="utf-8"))
LIVE = [row for row in KEYS.values() if row.status == "live"]
QUIET = [row for row in KEYS.values() if row.status != "live"]

# Set by the front door from the experiment itself, or without a documented key.
KEYLESS = {
    "run.work_group",
    "run.user_name",
    "run.exp_name",
    "run.folder",
    "model.position.yarn_beta_fast",
    "model.position.yarn_beta_slow",
    # Fine-tuning is said by framework megatron_bridge.
    "peft",
    "checkpoint.hf_path",
    "dataset.sft",
}


def leaves(cls, path=""):
    """Dotted paths of all plain fields of a container class."""
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, f"{path}{name}.")
        else:
            yield f"{path}{name}"


FIELDS = set(leaves(ConfigContainer))


def test_table_lists_the_reference_keys_in_its_order():
    assert list(KEYS)[: len(REFERENCE)] == [row["key"] for row in REFERENCE]


def test_sections_are_the_references():
    assert {row["key"]: KEYS[row["key"]].section for row in REFERENCE} == {row["key"]: row["section"] for row in REFERENCE}


def test_keys_beyond_the_reference_stand_in_a_chapter_of_their_own():
    beyond = set(KEYS) - {row["key"] for row in REFERENCE}
    assert {key for key, row in KEYS.items() if row.section.startswith("14.")} == beyond


def test_every_meaning_is_a_sentence_of_its_own():
    assert [key for key, row in KEYS.items() if not row.doc.endswith(".") or row.doc[0].islower()] == []
    assert [doc for doc, times in Counter(row.doc for row in KEYS.values()).items() if times > 1] == []


@pytest.mark.parametrize("row", LIVE, ids=lambda row: row.name)
def test_live_key_reaches_the_container(row):
    assert row.target
    assert set(row.target.split(", ")) <= FIELDS


@pytest.mark.parametrize("row", QUIET, ids=lambda row: row.name)
def test_key_that_does_not_act_says_why(row):
    assert row.reason
    assert row.target is None


def test_every_field_of_the_container_has_a_key():
    reached = {target for row in LIVE for target in row.target.split(", ")}
    assert FIELDS - reached == KEYLESS


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("use_turbo_parallel_linear", "use_turbo_parallel_linear has been removed; please use use_turbo_gemm instead"),
        ("use_turbo_grouped_mlp", "use_turbo_grouped_mlp has been removed; please use use_turbo_grouped_gemm instead"),
    ],
)
def test_removed_key_carries_the_documented_message(key, message):
    assert KEYS[key].status == "removed"
    assert KEYS[key].reason == message


@pytest.mark.parametrize("key", ["batch_size", "warmup", "model_parallel_size", "checkpoint_activations", "yaml_cfg"])
def test_retired_name_is_refused_and_names_its_successor(key):
    assert KEYS[key].status == "removed"
    assert KEYS[key].reason.startswith(f"{key} is no longer supported; ")
