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
from primus.cli.words import TAKES_WORDS

__all__ = ["app"]

app = typer.Typer(name="config", help="Look at an experiment without starting it.", no_args_is_help=True)
app.command("show", context_settings=TAKES_WORDS)(show.show)
app.command("validate")(validate.validate)
app.command("explain")(explain.explain)
app.command("diff")(diff.diff)
app.command("coverage")(coverage.show_coverage)
app.command("recipes")(recipes.recipes)
app.command("docs")(docs.docs)
