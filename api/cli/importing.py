"""The command that makes studies of rows measured elsewhere: import."""

from collections.abc import Sequence
from typing import cast, get_args

from api.cli.console import printable, write, write_json
from api.cli.outcome import BAD_INPUT, FAILED, Complaint, bad_input, line, of_error_items
from api.cli.source import read_text
from api.cli.target import connect
from api.client import ApiError
from api.limits import MAX_CSV_BYTES
from service.analysis.scaling import Mode
from service.errors import BadRequest, ErrorItem, VitScaleError
from service.views import StudyView

_ABOUT_THE_ROWS = frozenset({400, 413, 422})
_OPTIONS = "/query/"


def import_file(
    file: str | None,
    name: str | None,
    mode: str,
    renames: Sequence[str],
    description: str,
    tags: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if file is None:
        raise bad_input("import", "there is nothing to import", "vitscale import FILE.csv --name NAME")
    if name is None:
        raise bad_input("--name", "is missing", "what the study is to be called")
    from service.measured_rows.table import parse_renames

    if mode not in get_args(Mode):
        raise bad_input("--mode", f"{mode!r} is no mode", "none, strong or weak")
    try:
        renamed = parse_renames(renames)
    except BadRequest as error:
        raise Complaint(BAD_INPUT, *_option_lines(error.errors)) from error
    source, text = read_text(file, MAX_CSV_BYTES, "measured rows are CSV in UTF-8")
    with connect() as client:
        try:
            study = client.import_study(
                text,
                name,
                mode=cast(Mode, mode),
                renames=renamed,
                description=description,
                tags=tags,
            )
        except ApiError as error:
            raise _complaint(source, error) from error
    if as_json:
        write_json(study)
    else:
        _say(study)


def import_reference(collection: str, file: str | None, options: Sequence[str], *, as_json: bool) -> None:
    """Imports a collection's studies; those that are there already stay, and are shown again.

    Args:
        options: given beside it; a reference study has its own name, mode and tags.
    """
    from service.reference import reference_studies

    if file is not None:
        raise bad_input("--reference", "comes with its own rows", f"leave {file} out")
    if options:
        raise bad_input("--reference", "comes with its own names and modes", f"leave {', '.join(options)} out")
    try:
        references = reference_studies(collection)
    except VitScaleError as error:
        raise bad_input("--reference", error.detail) from error
    with connect() as client:
        studies = [
            client.import_study(
                each.text,
                each.name,
                mode=each.mode,
                description=each.description,
                tags=each.tags,
                idempotency_key=each.key,
            )
            for each in references
        ]
    if as_json:
        write_json([study.model_dump(mode="json") for study in studies])
    else:
        for study in studies:
            _say(study)


def _say(study: StudyView) -> None:
    write(f"study {study.id} ({printable(study.name)}): {study.progress.total} trials imported")


def _complaint(source: str, error: ApiError) -> Complaint:
    if error.status not in _ABOUT_THE_ROWS:
        return Complaint(FAILED, error.detail)
    options = _option_lines(error.errors)
    return Complaint(BAD_INPUT, *options) if options else of_error_items(BAD_INPUT, source, error.detail, error.errors)


def _option_lines(items: Sequence[ErrorItem]) -> list[str]:
    """A line for each item that is about a query parameter: on the command line those are options."""
    return [
        line(f"--{item.pointer.removeprefix(_OPTIONS)}", item.detail, item.hint)
        for item in items
        if item.pointer.startswith(_OPTIONS)
    ]
