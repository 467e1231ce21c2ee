"""`vitscale`: its commands, their arguments and help. What a command does is in a module of its own, which is imported
when the command runs, so that `vitscale --help` answers at once."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from api.cli.outcome import FAILED, GOOD, INTERRUPTED, Complaint, complain, expected_complaint, usage_complaint

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="A YAML or JSON file, - (standard input) or preset:NAME.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="A study's id, the beginning of one, or latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs: the answer as JSON.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where the database and the token lie (VITSCALE_DATA_DIR).")
]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"vitscale {version('vitscale')}")
        raise typer.Exit(GOOD)


@app.callback(
    invoke_without_command=True,
    epilog="Exit codes: 0 good, 1 failed, 2 bad input, 3 partial (some trials did not succeed).",
)
def vitscale(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """How does training a Vision Transformer with DeepSpeed scale on this machine or cluster, and what should be set?

    \b
    vitscale demo                                  a small study from start to table, on this machine
    vitscale serve                                 the server, in another terminal
    vitscale submit sweep.yaml --watch             run a study of your own
    vitscale results latest --format csv           its rows
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (VITSCALE_HOST, else 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port, 0 for a free one (VITSCALE_PORT, else 8321).")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no token; on loopback only.")] = False,
    data_dir: DataDir = None,
    stop_with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run the server, and on a laptop its own Ray head, until Ctrl-C.

    \b
    vitscale serve
    VITSCALE_RAY_DASHBOARD_URL=http://head:8265 vitscale serve
    """
    from api.cli import local

    local.serve(host, port, no_auth=no_auth, data_dir=data_dir, stop_with_stdin=stop_with_stdin)


@app.command()
def demo() -> None:
    """Run a small study from start to table: real images, a tiny ViT, one and two workers; under 3 minutes.

    Uses the server that runs, or starts one for as long as it takes. The study stays for `vitscale serve`.
    """
    from api.cli import demo as command

    raise typer.Exit(command.demo())


@app.command()
def plan(
    spec: Spec,
    as_json: AsJson = False,
    show_all: Annotated[bool, typer.Option("--all", help="Every trial, however many.")] = False,
) -> None:
    """What a study would run; needs no server. Points that cannot be are named, and the exit code is 2.

    \b
    vitscale plan sweep.yaml
    vitscale plan preset:vector-strong --json
    """
    from api.cli import submitting

    submitting.plan(spec, as_json=as_json, show_all=show_all)


@app.command()
def submit(
    spec: Spec,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end and print the results.")] = False,
    name: Annotated[str | None, typer.Option(help="Another name than the specification's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Queue a study. With --watch the exit code is 0 succeeded, 3 partial, 1 failed or cancelled.

    \b
    vitscale submit preset:demo --watch
    vitscale submit sweep.yaml --name after-upgrade
    """
    from api.cli import submitting

    raise typer.Exit(submitting.submit(spec, follow=watch, name=name, as_json=as_json))


@app.command("list")
def list_studies(
    as_json: AsJson = False,
    status: Annotated[str | None, typer.Option(help="queued, running, succeeded, partial, failed, ...")] = None,
    name: Annotated[str | None, typer.Option(help="The exact name.")] = None,
    tag: Annotated[str | None, typer.Option(help="One of the study's tags.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
) -> None:
    """Studies, newest first."""
    from api.cli import studies

    studies.list_studies(status, name, tag, limit, as_json=as_json)


@app.command()
def show(
    study_id: Id = "latest",
    as_json: AsJson = False,
    trial: Annotated[int | None, typer.Option(min=1, help="Only this trial: its step's parts, workers, links.")] = None,
) -> None:
    """One study: its state, counts and progress, and why trials failed; or one of its trials."""
    from api.cli import studies

    studies.show(study_id, trial, as_json=as_json)


@app.command()
def watch(study_id: Id = "latest") -> None:
    """Follow a study to its end; Ctrl-C leaves it running. Exit code 0 succeeded, 3 partial, 1 failed or cancelled."""
    from api.cli import studies

    raise typer.Exit(studies.watch(study_id))


@app.command()
def results(
    study_id: Id = "latest",
    form: Annotated[
        str, typer.Option("--format", metavar="table|json|csv|parquet", help="How the rows are written.")
    ] = "table",
    state: Annotated[str | None, typer.Option(help="Only trials in this state: succeeded, failed, ...")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Into this file, not to standard output.")
    ] = None,
) -> None:
    """Throughput, step and epoch time of each trial, speed-up and efficiency against the baseline.

    \b
    vitscale results latest
    vitscale results k3v7 --format csv > rows.csv
    vitscale results k3v7 --format parquet --output rows.parquet
    """
    from api.cli import results as command

    command.results(study_id, form, state, output)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The study before: an id, the beginning of one, or latest.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The study after.")],
    tolerance: Annotated[str, typer.Option(metavar="SHARE", help="Slower by no more is no regression.")] = "5%",
    as_json: AsJson = False,
) -> None:
    """What became slower or faster from study A to study B, beyond the noise and the tolerance: a gate for upgrades.

    Exit code 0 where nothing did, 1 on a regression (slower, or failed where it ran before), 2 where it cannot be said.

    \b
    vitscale compare k3v7 latest --tolerance 5%
    """
    from api.cli import compare as command

    raise typer.Exit(command.compare(a, b, tolerance, as_json=as_json))


@app.command()
def analyse(
    study_id: Id = "latest",
    forecast: Annotated[
        str | None, typer.Option(metavar="N,N", help="World sizes to forecast; else two and four times the largest.")
    ] = None,
    sweet_spot_ratio: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Share of the best throughput that a batch must reach (0.9).")
    ] = None,
    efficiency: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="What the largest useful world size must keep (0.8).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What the rows say together: scaling and forecasts, the batch size to take, where memory ends, findings.

    \b
    vitscale analyse latest
    vitscale analyse k3v7 --forecast 16,32 --efficiency 0.7
    """
    from api.cli import analysis as command

    command.analyse(study_id, forecast, sweet_spot_ratio, efficiency, as_json=as_json)


@app.command()
def logs(
    study_id: Id = "latest",
    trial: Annotated[int | None, typer.Option(min=1, help="Only this trial's lines.")] = None,
) -> None:
    """What the study's job and its trials wrote."""
    from api.cli import results as command

    command.logs(study_id, trial)


@app.command()
def cancel(study_id: Id) -> None:
    """End a study that is queued or running. What has finished stays."""
    from api.cli import studies

    studies.act(study_id, "cancel")


@app.command()
def resume(study_id: Id) -> None:
    """Run again what never finished."""
    from api.cli import studies

    studies.act(study_id, "resume")


@app.command()
def retry(study_id: Id) -> None:
    """Run again what never finished, and what failed."""
    from api.cli import studies

    studies.act(study_id, "retry")


@app.command()
def extend(
    study_id: Id,
    spec: Spec,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end and print the results.")] = False,
) -> None:
    """Run more points in a study that is over: those of SPEC that it does not have yet, more repeats among them.

    \b
    vitscale extend latest sweep.yaml      the study's own file, with more values on an axis or more repeats
    """
    from api.cli import submitting

    raise typer.Exit(submitting.extend(study_id, spec, follow=watch))


@app.command("import")
def import_rows(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="CSV with a header, or - (standard input).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The study's name.")] = None,
    mode: Annotated[
        str, typer.Option(metavar="none|strong|weak", help="weak: dataset_fraction is per worker.")
    ] = "none",
    renames: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="THEIRS=OURS", help="Rename a column; THEIRS= passes it over. May be repeated."),
    ] = None,
    description: Annotated[str, typer.Option(help="What was measured, and by whom.")] = "",
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag of the study. May be repeated.")] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="paper", help="Published measurements that come with VitScale.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a finished study of rows that were measured elsewhere.

    One row per run, or per run and epoch (and rank). Columns: run, world_size, a batch size
    (train_micro_batch_size_per_gpu or train_batch_size), epoch_seconds or step_seconds, and where known
    steps_per_epoch, nodes, device, model, dataset, loss, accuracy, ...

    \b
    vitscale import runs.csv --name old-cluster --mode strong --map gpus=world_size --map notes=
    vitscale import --reference paper
    """
    from api.cli import importing

    if reference is not None:
        given = {"name": name, "mode": mode, "map": renames, "description": description, "tag": tags}
        importing.import_reference(
            reference,
            file,
            [f"--{key}" for key, value in given.items() if value not in (None, "", "none", [])],
            as_json=as_json,
        )
    else:
        importing.import_file(file, name, mode, renames or [], description, tags or [], as_json=as_json)


@app.command()
def delete(study_id: Id, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Delete a study that has ended, with all its results."""
    from api.cli import studies

    raise typer.Exit(studies.delete(study_id, is_sure=yes))


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this one, to edit and submit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Specifications that come with VitScale; needs no server.

    \b
    vitscale presets
    vitscale presets demo > mine.yaml
    """
    from api.cli import submitting

    submitting.presets(name, as_json=as_json)


@app.command()
def token() -> None:
    """Print the token that the server of this data directory asks for.

    \b
    curl -H "Authorization: Bearer $(vitscale token)" http://127.0.0.1:8321/studies
    """
    from api.cli import local

    local.token()


@app.command()
def dashboard(
    no_open: Annotated[bool, typer.Option("--no-open", help="Only say where it is.")] = False,
) -> None:
    """Open Ray's dashboard in the browser, and say where its token lies."""
    from api.cli import local

    local.dashboard(may_open=not no_open)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Check this machine: what is missing, and what to do. Exit code 1 where something that is needed is missing."""
    from api.cli import doctor as command

    raise typer.Exit(command.doctor(as_json=as_json))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; expected errors become lines on standard error."""
    try:
        code = app(args=list(arguments), prog_name="vitscale", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return FAILED
    except Complaint as complaint:
        return _said(complaint)
    except Exception as error:
        expected = usage_complaint(error) or expected_complaint(error)
        if expected is None:
            raise
        return _said(expected)
    return code if isinstance(code, int) else GOOD


def _said(complaint: Complaint) -> int:
    complain(*complaint.lines)
    return complaint.exit_code


def _closed_pipe() -> int:
    """`vitscale results | head` is no error; what is still buffered has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
