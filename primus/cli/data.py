"""`primus data prepare | train-tokenizer`: thin verbs over `primus.engine.data.prepare`, which loads when a verb runs."""

import typer

__all__ = ["app"]

app = typer.Typer(name="data", help="Prepare data and tokenizers.", no_args_is_help=True)
