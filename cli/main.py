"""`elastic-tpu`: plan, run, watch, cancel and check elastic training runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer

from .. import __version__
from ..runs.errors import BadInput, ElasticTPUError, ExitCode, describe_codes
from . import output

_HELP = (
    (__doc__ or "").strip(),
    "A spec is a YAML file that says what to train, and on which slices (docs/spec.md). A run is the directory that is "
    "made from it, `<run.output>/<run.name>`, on a filesystem or in a bucket: `run` prints it, and the other commands "
    "take it, from any process and any machine that reaches it.",
    describe_codes("command"),
)
_EXAMPLES = (
    "Examples, with simulated slices on this machine (`make demo` makes their data):",
    "elastic-tpu plan examples/local.yaml",
    "elastic-tpu run examples/local.yaml",
    "elastic-tpu status runs-demo/my-run --watch",
    "Each command explains itself:  elastic-tpu run --help",
)
_BEFORE, _DRIVE, _LOOK, _REHEARSE = "Before a run", "Start and end a run", "Look at a run", "Rehearse failures"

app = typer.Typer(
    help="\n\n".join(_HELP),
    epilog="\n\n".join(_EXAMPLES),
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"elastic-tpu {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Kubeconfig to use in place of one that a run names; $ELASTIC_TPU_KUBECONFIG."
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Context to use in place of one that a run names; $ELASTIC_TPU_CONTEXT."),
    ] = None,
) -> None:
    """Options of `elastic-tpu` itself; its help is that of `app`."""
    if kubeconfig or context:
        from .login import name

        name(kubeconfig, context)


RunArgument = Annotated[str, typer.Argument(help="The run directory, as `elastic-tpu run` printed it.", metavar="RUN")]


class Via(StrEnum):
    """Who drives the stages."""

    cli = "cli"
    kfp_local = "kfp-local"


def _reports(command: Callable[..., int | None]) -> Callable[..., None]:
    """Report an error of this package as a message and its exit code, without a traceback."""

    @wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs) or 0
        except ElasticTPUError as error:
            _say_error(error)
            code = int(error.code)
        except KeyboardInterrupt:
            code = int(ExitCode.INTERRUPTED)
        except OSError as error:
            if not output.is_of_output(error):
                raise
            code = output.give_up(error)
        raise typer.Exit(code)

    return wrapper


def _say_error(error: ElasticTPUError) -> None:
    lines = str(error).splitlines() or ["unknown"]
    count = len(error.problems) if isinstance(error, BadInput) else 1
    what = "" if error.code.outcome == "cancelled" else "error: "  # what a person asked for is none
    head = f"error: {count} problems\n  " if count > 1 else what
    from .display import plain

    print(plain(head + "\n  ".join(lines)), file=sys.stderr)  # noqa: T201 - a command's own output


@app.command(
    rich_help_panel=_BEFORE,
    epilog="Example:  elastic-tpu init my-texts/\n\nThen:  elastic-tpu run my-texts-run/spec.yaml",
)
@_reports
def init(
    data: Annotated[str, typer.Argument(help="A folder, or a file, of .txt, .jsonl or .parquet.", metavar="DATA")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="Folder to write into; DATA's name with -run by default.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder of a Hugging Face tokenizer; one token a byte by default.")
    ] = None,
    text: Annotated[str, typer.Option(help="Field or column of .jsonl and .parquet that holds the text.")] = "text",
    force: Annotated[bool, typer.Option("--force", help="Write over what an earlier `init` wrote.")] = False,
) -> None:
    """Make a first run of your own texts: parquet files, and a spec that trains a small model on this machine.

    A document is a paragraph of .txt, a line of .jsonl, a row of .parquet; one in twenty is held out for the
    evaluation. Nothing is downloaded.
    """
    from .init import init

    init(data, out, tokenizer, text, force)


@app.command(rich_help_panel=_BEFORE, epilog="Example:  elastic-tpu plan examples/local.yaml")
@_reports
def plan(
    spec: Annotated[str, typer.Argument(help="The run spec (YAML file or gs:// URI).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    manifests: Annotated[
        bool, typer.Option("--manifests", help="Print the Kubernetes objects as YAML; with --json as part of it.")
    ] = False,
) -> None:
    """Show what a spec resolves to: slices, memory, slice-hours, MaxText's settings. Nothing is created."""
    from . import show

    show.manifests(spec) if manifests and not as_json else show.plan(spec, as_json, manifests)


@app.command(rich_help_panel=_BEFORE, epilog="Example:  elastic-tpu schema > spec.schema.json")
@_reports
def schema() -> None:
    """Print the JSON Schema of a spec, with which an editor completes and checks its YAML.

    In the first line of the spec:  # yaml-language-server: $schema=spec.schema.json
    """
    import json

    from ..runs.spec.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command(
    rich_help_panel=_DRIVE,
    epilog="Example:  elastic-tpu run examples/local.yaml\n\nAn unfinished run:  elastic-tpu run runs-demo/my-run",
)
@_reports
def run(
    spec: Annotated[str, typer.Argument(help="The run spec, or the directory of a run to go on with.")],
    via: Annotated[Via, typer.Option(help="Who drives the stages.")] = Via.cli,
    take_over: Annotated[bool, typer.Option("--take-over", help="Take the run from whoever drives it.")] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="The run's directory was moved here for good: go on with it here.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Leave once training is submitted; only where it goes on by itself (GKE).")
    ] = False,
) -> int:
    """Provision, train, release, export and evaluate; follow to the end.

    Safe to repeat: what is complete is not done again, what still runs is adopted. Ctrl-C stops training with a saved
    checkpoint and gives the slices back; Ctrl-C again does not wait for the save. On GKE training goes on by itself:
    there the first Ctrl-C, or a closed terminal, leaves it, and a second Ctrl-C within 5 s stops it.
    """
    if via is Via.kfp_local:
        if detach:
            raise BadInput("--detach: a pipeline of kfp.local is a process of this one; leave out --via or --detach")
        from .kfp_local import follow
    else:
        from .follow import follow
    return follow(spec, take_over, moved, detach)


@app.command(rich_help_panel=_LOOK, epilog="Example:  elastic-tpu status runs-demo/my-run --watch")
@_reports
def status(
    run: RunArgument,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again until the run is over; off a terminal tell what changed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON document (docs/contracts.md 13); with --watch one a line.")
    ] = False,
) -> None:
    """Show where a run is: phase, step, loss, slices, recoveries, who drives it, model, held-out loss, gate."""
    from . import status

    status.status(run, watch, as_json)


@app.command(rich_help_panel=_LOOK, epilog="Example:  elastic-tpu logs runs-demo/my-run --follow")
@_reports
def logs(
    run: RunArgument,
    job: Annotated[
        str, typer.Option(help="train, export or evaluate.", autocompletion=lambda: ["train", "export", "evaluate"])
    ] = "train",
    attempt: Annotated[int | None, typer.Option(help="Number of the attempt; the newest by default.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
) -> None:
    """Print a job's log."""
    from . import show

    show.logs(run, job, attempt, follow)


@app.command(rich_help_panel=_DRIVE, epilog="Example:  elastic-tpu cancel runs-demo/my-run")
@_reports
def cancel(run: RunArgument) -> None:
    """Ask training to save and end. Whoever drives the run gives the slices back."""
    from . import act

    act.cancel(run)


@app.command(rich_help_panel=_DRIVE, epilog="Example:  elastic-tpu release runs-demo/my-run")
@_reports
def release(run: RunArgument) -> int:
    """Stop the run and give its slices back, whoever drives it; shows what was there and what is left."""
    from . import act

    return act.release(run)


@app.command(rich_help_panel=_LOOK, epilog="Example:  elastic-tpu verify runs-demo/my-run")
@_reports
def verify(run: RunArgument) -> int:
    """Check every proof of a run against storage: checkpoints, result, export, evaluation and gate."""
    from . import verify

    return verify.verify(run)


@app.command(rich_help_panel=_LOOK, epilog="Example:  elastic-tpu report runs-demo/my-run --open")
@_reports
def report(
    run: RunArgument,
    output: Annotated[str | None, typer.Option(help="Where to write the page, `-` for stdout.", metavar="FILE")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write the report of a run, one HTML page: report.html in the run directory, which every stage writes too."""
    from . import report

    report.report(run, output, open_it)


@app.command("kill-slice", rich_help_panel=_REHEARSE, epilog="Example:  elastic-tpu kill-slice runs-demo/my-run 1")
@_reports
def kill_slice(
    run: RunArgument,
    index: Annotated[int, typer.Argument(help="Number of the slice, from 0.", metavar="SLICE")],
    whole: Annotated[bool, typer.Option("--whole", help="Kill every worker of the slice.")] = False,
) -> None:
    """Kill a slice's worker without notice, to rehearse its loss."""
    from . import act

    act.kill_slice(run, index, whole)


def main() -> None:
    """Entry point of the console script."""
    # urllib3 warns of each retry; the error of the last one is reported anyway.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        app(prog_name="elastic-tpu")
    except SystemExit as end:  # typer exits with 2 for arguments that it does not understand
        code = int(ExitCode.BAD_INPUT) if end.code == 2 else end.code
    except OSError as error:  # the help of a command, which prints outside of `_reports`
        if not output.is_of_output(error):
            raise
        code = output.give_up(error)
    raise SystemExit(output.flush() or code)


if __name__ == "__main__":
    main()
