"""`primus train pretrain | posttrain`: the options of the verbs. What they do stands in `run.py`, loaded when one runs."""

from pathlib import Path
from typing import Annotated

import typer

from primus.cli.words import TAKES_WORDS, examples
from primus.core.launch import LaunchOptions
from primus.errors import InputError

__all__ = ["app"]

app = typer.Typer(name="train", help="Start a training run.", no_args_is_help=True)

_WORDS_HELP = "Keys of the experiment follow in any of the forms KEY=VALUE, --KEY VALUE, --KEY=VALUE, and win over the file."

ConfigFiles = Annotated[list[Path], typer.Option("--config", metavar="FILE", help="Experiment YAML.", show_default=False)]
NprocPerNode = Annotated[int | None, typer.Option(metavar="N", help="Processes to start on this machine; by default 1.")]
Nnodes = Annotated[int | None, typer.Option(metavar="N", help="Machines of the run; by default 1.")]
NodeRank = Annotated[int | None, typer.Option(metavar="N", help="Number of this machine, with --master-addr.")]
MasterAddr = Annotated[str | None, typer.Option(metavar="HOST", help="Host of machine 0.")]
MasterPort = Annotated[int | None, typer.Option(metavar="PORT", help="Port on machine 0; by default 29500.")]
RdzvEndpoint = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where machines without numbers meet.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Resolve, check and print the plan; start and write nothing.")]
WorldSize = Annotated[int | None, typer.Option(metavar="N", help="With --dry-run: plan for N ranks, and rehearse one of them.")]
Rank = Annotated[int | None, typer.Option(metavar="R", help="With --dry-run: the rank to rehearse; by default 0.")]


def _add(name: str, role: str, text: str) -> None:
    """Add a verb that runs the module called `role`, or the only one."""
    start = f"primus train {name} --config my.yaml"
    shown = examples(start, f"{start} --nproc-per-node 8 lr=3e-4", f"{start} --dry-run --world-size 64 --rank 9")

    @app.command(name, help=text, context_settings=TAKES_WORDS, epilog=f"{_WORDS_HELP}\n\n{shown}")
    def verb(
        context: typer.Context,
        config: ConfigFiles,
        nproc_per_node: NprocPerNode = None,
        nnodes: Nnodes = None,
        node_rank: NodeRank = None,
        master_addr: MasterAddr = None,
        master_port: MasterPort = None,
        rdzv_endpoint: RdzvEndpoint = None,
        dry_run: DryRun = False,
        world_size: WorldSize = None,
        rank: Rank = None,
    ) -> None:
        options = LaunchOptions(
            nproc_per_node=nproc_per_node,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            rdzv_endpoint=rdzv_endpoint,
        )
        from primus.cli.run import Look, run

        run(role, _only(config), context.args, options, Look(dry_run=dry_run, world_size=world_size, rank=rank))


def _only(files: list[Path]) -> Path:
    """Return the experiment; of two, none silently wins."""
    if len(files) > 1:
        given = " and ".join(map(str, files))
        raise InputError(
            f"--config is given more than once ({given}): a run has one experiment; with extends it builds on others"
        )
    return files[0]


_add("pretrain", "pre_trainer", "Pretrain the model of an experiment.")
_add("posttrain", "post_trainer", "Fine-tune the model of an experiment, all of it or adapters.")
