"""Counts by status, and the page."""

from primus.core.experiment import Value
from primus.core.keys import Key, coverage, key_page

KEYS = {
    "lr": Key("lr", "float", (), "live", "optimizer.lr", "Rate.", section="1", minimum=0),
    "style": Key("style", "str?", ("a", "b"), "pending", None, "Shape, a|b.", "shapes are not built yet", section="2"),
    "head": Key("head", "bool", (), "inert", None, "Head.", "only BERT reads it", section="2"),
    "old": Key("old", "bool", (), "removed", None, "Old.", "old has been removed; please use lr instead", section="1"),
}


def test_coverage_counts_every_key_once():
    counted = coverage(KEYS)
    assert (counted["live"], counted["pending"], counted["inert"]) == (2, 1, 1)
    assert counted["keys"]["style"] == {"status": "pending", "reason": "shapes are not built yet"}
    assert counted["keys"]["old"]["status"] == "live"


def test_the_page_has_a_row_for_every_key_under_its_section():
    defaults = {"lr": Value(1e-3, "x:1")}
    page = key_page(KEYS, framework="megatron", titles={"1": "One", "2": "Two"}, defaults=defaults, presets="`x`")
    assert "Defaults are those of `x`." in page
    first, second = page.split("## 2 Two")
    assert "| `lr` | a number | `0.001` | live | Rate. At least 0. |" in first
    assert "| `style` | `a` `b` |  | pending | Shape, a\\|b. *Shapes are not built yet.* |" in second
    assert page.endswith("|\n")
