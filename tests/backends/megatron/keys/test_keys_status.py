"""Nothing is silently ignored: a key that is not built stops the run when changed, a key without effect says so."""

import pytest

from primus.backends.megatron.keys import KEYS
from primus.core.experiment import Value, load_presets
from primus.core.keys import Key, check_params, parse_type

DEFAULTS = load_presets("megatron", "pre_trainer.yaml", "language_model.yaml")
PENDING = [row for row in KEYS.values() if row.status == "pending"]
INERT = [row for row in KEYS.values() if row.status == "inert"]
REFUSED = [row for row in KEYS.values() if row.status == "removed"]
SAMPLES = {
    "int": 3,
    "float": 0.5,
    "str": "other",
    "path": "/other",
    "any": True,
    "list[int]": [3],
    "list[str]": ["other"],
    "list[float]": [0.5],
    "list[any]": [["embedding"]],
}


def other_value(row: Key):
    """Return a legal value that is not the preset's."""
    default = DEFAULTS[row.name].value if row.name in DEFAULTS else None
    if parse_type(row.type).members == ("bool",):
        return not default
    if row.choices:
        (first, *_) = [choice for choice in row.choices if choice != default] or [None]
        return first
    sample = SAMPLES[parse_type(row.type).members[0]]
    return sample if sample != default else sample + 1 if isinstance(sample, int) else sample / 2


def change(row: Key):
    """Return problems and warnings when one key is changed."""
    changed = {**DEFAULTS, row.name: Value(other_value(row), "exp.yaml:7")}
    _, problems, warnings = check_params(KEYS, changed, DEFAULTS)
    return problems, warnings


@pytest.mark.parametrize("row", PENDING, ids=lambda row: row.name)
def test_pending_key_stops_the_run_when_changed(row):
    problems, warnings = change(row)
    assert warnings == []
    (problem,) = problems
    assert row.name in problem
    assert "exp.yaml:7" in problem
    assert row.reason in problem


@pytest.mark.parametrize("row", INERT, ids=lambda row: row.name)
def test_inert_key_warns_with_its_reason_when_changed(row):
    problems, warnings = change(row)
    assert problems == []
    (warning,) = warnings
    assert warning.startswith(row.name)
    assert row.reason in warning


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_refused_key_stops_the_run_with_its_message(row):
    problems, _ = change(row)
    (problem,) = problems
    assert problem.startswith(row.reason)


@pytest.mark.parametrize("value", [True, False, None, "turbo"])
def test_passing_a_removed_turbo_key_is_an_error_whatever_its_value(value):
    changed = {**DEFAULTS, "use_turbo_parallel_linear": Value(value, "cli")}
    _, problems, _ = check_params(KEYS, changed, DEFAULTS)
    (problem,) = problems
    assert problem.startswith("use_turbo_parallel_linear has been removed; please use use_turbo_gemm instead")
