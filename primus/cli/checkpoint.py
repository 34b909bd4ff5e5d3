"""`primus checkpoint import-hf | export-hf | import-peft | export-peft`: between Hugging Face folders and our checkpoints.

What is wrong with `config.json` or an experiment is said here; the weights move in a process of their own, which writes into
a folder that gets its name only when all is there.
"""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from primus.backends.megatron.model_preset import overridden_keys, preset_text
from primus.cli.doors import build, fewest_ranks, only_module
from primus.cli.leaving import leaving_on_sigterm
from primus.cli.words import examples
from primus.core.experiment import load_experiment
from primus.core.launch.start import exchange_command
from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.read import ADAPTER_CONFIG, CONFIG, ORIGINAL, check_extent, model_in
from primus.engine.config.model import ModelConfig
from primus.errors import ConfigError, InputError, RunError
from primus.hub import model_folder

__all__ = ["app"]

app = typer.Typer(name="checkpoint", help="Exchange weights and adapters with Hugging Face folders.", no_args_is_help=True)

PRESET = "model.yaml"
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")

Checkpoint = Annotated[
    Path, typer.Argument(metavar="CKPT", help="Folder that a run saves into, or one checkpoint in it.", show_default=False)
]
Original = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder that the weights once came from; its other files go on.", show_default="if known"
    ),
]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to make.", show_default=False)]


@app.command("import-hf", epilog=examples("primus checkpoint import-hf --hf-path my_model --out my_ckpt"))
def import_hf(
    hf_path: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder with config.json and safetensors.", show_default=False)
    ],
    out: Out,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Experiment whose model the weights must be of.", show_default=False)
    ] = None,
) -> None:
    """Make a checkpoint of a Hugging Face folder, and a preset of its model beside it."""
    file = hf_path / CONFIG
    family, model = model_in(hf_path)
    check_extent(hf_path, family, model)
    if config is not None:
        _check_experiment(config, model, file)
    has_tokenizer = any((hf_path / name).is_file() for name in _TOKENIZER)
    with leaving_on_sigterm(), new_folder(out) as folder:
        preset = _preset(model, family, hf_path, out.absolute() / ORIGINAL if has_tokenizer else None)
        (folder / PRESET).write_text(preset, encoding="utf-8")
        _run(exchange_command("import", hf_path, folder, {}))
    typer.echo(f"{out}: a {family} of {model.num_layers} layers; a run starts from it with")
    typer.echo(f"  model: {out.absolute() / PRESET}")
    typer.echo(f"  pretrained_checkpoint: {out.absolute()}")
    for key, value in overridden_keys(model).items():
        typer.echo(f"  {key}: {str(value).lower()}  # under overrides")


@app.command(
    "export-hf",
    epilog=examples(
        "primus checkpoint export-hf output/team/ann/exp/checkpoints --out trained",
        "primus checkpoint export-hf output/team/ann/exp/checkpoints/iter_0000100 --out trained --hf-path my_model",
    ),
)
def export_hf(
    checkpoint: Checkpoint,
    out: Out,
    hf_path: Original = None,
    base: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the weights lie that adapters stand beside.", show_default="as the run found"
        ),
    ] = None,
) -> None:
    """Make a Hugging Face folder of a checkpoint; adapters are merged into the weights that they stand beside."""
    options = {"--original": hf_path, "--base": base}
    with leaving_on_sigterm(), new_folder(out) as folder:
        _run(exchange_command("export", checkpoint, folder, {name: path for name, path in options.items() if path}))
    typer.echo(str(out))


@app.command("export-peft", epilog=examples("primus checkpoint export-peft output/team/ann/exp/checkpoints --out adapter"))
def export_peft(checkpoint: Checkpoint, out: Out, hf_path: Original = None) -> None:
    """Make a folder of the peft library of the adapters in a checkpoint."""
    with leaving_on_sigterm(), new_folder(out) as folder:
        _run(exchange_command("export-peft", checkpoint, folder, {"--original": hf_path} if hf_path else {}))
    typer.echo(str(out))


@app.command(
    "import-peft", epilog=examples("primus checkpoint import-peft --peft-path adapter --out my_ckpt --hf-path my_model")
)
def import_peft(
    peft_path: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder with adapter_config.json and safetensors.", show_default=False)
    ],
    out: Out,
    hf_path: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model that the adapters are of.", show_default="the one that the folder names"),
    ] = None,
) -> None:
    """Make a checkpoint of the adapters in a folder of the peft library."""
    base = model_folder(hf_path or _named_base(peft_path), weights=False)
    with leaving_on_sigterm(), new_folder(out) as folder:
        _run(exchange_command("import-peft", peft_path, folder, {"--base": base}))
    peft = json.loads((out / "peft.json").read_text(encoding="utf-8"))
    typer.echo(f"{out}: adapters; a run on {base} starts from them with")
    words = {"peft": peft["scheme"], "peft_dim": peft["dim"], "peft_alpha": peft["alpha"]}
    words |= {"peft_target_modules": peft["target_modules"], "load": str(out.absolute())}
    for key, value in words.items():
        typer.echo(f"  {key}: {json.dumps(value)}")


def _named_base(folder: Path) -> str:
    """Return the name of the model in the configuration of adapters; what is wrong with that its reader tells."""
    try:
        name = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / ADAPTER_CONFIG} cannot be read: {error}") from error
    if not name:
        raise InputError(f"{folder / ADAPTER_CONFIG} names no base_model_name_or_path; give the model with --hf-path")
    return str(name)


def _run(command: list[str]) -> None:
    """Move weights; an error has been told there."""
    code = subprocess.run(command, check=False).returncode
    if code < 0:
        hint = "; a machine that runs out of memory does that" if -code == signal.SIGKILL else ""
        raise RunError(f"the process that moves weights was ended by {signal.Signals(-code).name}{hint}")
    if code:
        raise typer.Exit(code)


def _preset(model: ModelConfig, family: str, source: Path, tokenizer: Path | None) -> str:
    opening = f"The {family} of {source.absolute()}"
    return preset_text(model, opening=opening, tokenizer=None if tokenizer is None else str(tokenizer))


def _check_experiment(file: Path, model: ModelConfig, where: Path) -> None:
    """ConfigError lists the fields in which an experiment's model is another one."""
    experiment = load_experiment(file, (), os.environ)
    module = only_module(experiment, "pre_trainer")
    ours = build(experiment, module, fewest_ranks(module)).config.model
    problems = [f"{file}: model.{path} is {value}, and {their} in {where}" for path, value, their in differences(ours, model)]
    if problems:
        raise ConfigError(problems)
