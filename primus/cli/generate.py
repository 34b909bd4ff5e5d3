"""`primus generate RUN`: a sample from a checkpoint of a run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from primus.cli.words import examples
from primus.core.launch.start import become, sample_command
from primus.errors import InputError

__all__ = ["app"]

app = typer.Typer()


_EXAMPLES = examples(
    "primus generate output/team/ann/exp --prompt Once --max-new-tokens 100",
    'primus generate output/team/ann/exp --chat --prompt "What is LoRA?" --temperature 0',
)


@app.command(epilog=_EXAMPLES)
def generate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, the one that holds config.yaml.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; empty starts a new document.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest continuation, in tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw from the likeliest tokens of this total.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is what a user says, by the chat template; print the answer alone.")
    ] = False,
    ckpt_step: Annotated[
        int | None, typer.Option(metavar="N", help="Iteration of the checkpoint.", show_default="the newest")
    ] = None,
) -> None:
    """Continue a prompt with a checkpoint of a run; adapters are merged into the weights that they stand beside."""
    config = run / "config.yaml"
    if not config.is_file():
        above = next((folder for folder in run.parents if (folder / "config.yaml").is_file()), None)
        hint = "" if above is None else f"; {above} does (--ckpt-step chooses a checkpoint)"
        raise InputError(f"{run} is not a run folder: it holds no config.yaml{hint}")
    options: dict[str, object] = {
        "--prompt": prompt,
        "--max-new-tokens": max_new_tokens,
        "--temperature": temperature,
        "--top-p": top_p,
        "--seed": seed,
    }
    flags = ["--chat"] * chat + [f"--ckpt-step={ckpt_step}"] * (ckpt_step is not None)
    become([*sample_command(config, options), *flags], os.environ)
