"""`primus config`: look at an experiment without starting it.

- `show.py`: the resolved parameters with their sources
- `validate.py`: everything that is checked before a start
- `explain.py`: what one key means
- `diff.py`: what two experiments do differently
- `coverage.py`: which keys act
- `recipes.py`: what `recipe` and `flavor` can name
- `docs.py`: the key reference as Markdown
- `resolve.py`: what these verbs read: an experiment with its values typed
"""

import typer

from primus.cli.config import coverage, diff, docs, explain, recipes, show, validate
from primus.cli.words import TAKES_WORDS, examples

__all__ = ["app"]

app = typer.Typer(name="config", help="Look at an experiment without starting it.", no_args_is_help=True)
app.command(
    "show",
    context_settings=TAKES_WORDS,
    epilog=examples("primus config show my.yaml", "primus config show my.yaml lr=3e-4 --json"),
)(show.show)
app.command("validate", epilog=examples("primus config validate *.yaml", "primus config validate my.yaml --world-size 64"))(
    validate.validate
)
app.command("explain", epilog=examples("primus config explain lr", "primus config explain peft --framework megatron_bridge"))(
    explain.explain
)
app.command("diff", epilog=examples("primus config diff a.yaml b.yaml"))(diff.diff)
app.command("coverage", epilog=examples("primus config coverage", "primus config coverage --framework megatron_bridge"))(
    coverage.show_coverage
)
app.command(
    "recipes",
    epilog=examples(
        "primus config recipes", "primus config recipes qwen.qwen3", "primus config recipes qwen3_8b_finetune_config"
    ),
)(recipes.recipes)
app.command(
    "docs", epilog=examples("primus config docs", "primus config docs --framework megatron_bridge --out bridge-keys.md")
)(docs.docs)
