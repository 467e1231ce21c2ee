"""How a command ends: its exit code, and one line on standard error for each thing that is wrong."""

import sys
from collections.abc import Sequence

import typer

from service.errors import ErrorItem, VitScaleError
from service.states import StudyState

GOOD = 0
FAILED = 1
BAD_INPUT = 2
PARTIAL = 3
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM

_MAX_LINES = 30  # of one complaint; a plan may refuse thousands of points for one reason
_INPUT_STATUSES = frozenset({400, 404, 413, 415, 422})
# Typer carries its own copy of click or uses the installed one, by version; what it exports leads to the right one.
_USAGE_PROBLEM: type[Exception] = typer.BadParameter.__bases__[0]
_BY_STATE = {StudyState.SUCCEEDED: GOOD, StudyState.PARTIAL: PARTIAL}


class Complaint(Exception):
    """Ends the command: `lines` go to standard error, each "where: what (hint)"."""

    def __init__(self, exit_code: int, *lines: str) -> None:
        super().__init__("; ".join(lines))
        self.exit_code = exit_code
        self.lines = lines


def bad_input(where: str, what: str, hint: str | None = None) -> Complaint:
    return Complaint(BAD_INPUT, line(where, what, hint))


def of_error_items(exit_code: int, source: str, detail: str, items: Sequence[ErrorItem]) -> Complaint:
    """A complaint with a line for each item, or with `detail` where there is none. `source` names the input."""
    if not items:
        return Complaint(exit_code, line(source, detail, None))
    shown = [line(_place(source, item.pointer), item.detail, item.hint) for item in items[:_MAX_LINES]]
    if len(items) > _MAX_LINES:
        shown.append(f"... and {len(items) - _MAX_LINES} more")
    return Complaint(exit_code, *shown)


def of_error(source: str, error: VitScaleError) -> Complaint:
    return of_error_items(BAD_INPUT if error.status < 500 else FAILED, source, error.detail, error.errors)


def usage_complaint(error: Exception) -> Complaint | None:
    """What the command line itself refuses: an unknown option, a missing argument, a value of the wrong type."""
    if not isinstance(error, _USAGE_PROBLEM):
        return None
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "vitscale"
    message = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    return bad_input(where.removeprefix("vitscale").strip(), message, f"see {where} --help")


def expected_complaint(error: Exception) -> Complaint | None:
    """An error of the client, the settings or the machine that a person can act on; None for a bug."""
    from api.client import ApiError, ClientError
    from api.discovery import AddressInvalid, ServerNotFound

    match error:
        case ApiError():
            code = BAD_INPUT if error.status in _INPUT_STATUSES else FAILED
            return of_error_items(code, "", error.detail, error.errors)
        case ClientError() | ServerNotFound():
            return Complaint(FAILED, str(error))
        case AddressInvalid():
            return bad_input("VITSCALE_URL", str(error))
        case VitScaleError():
            return of_error("", error)
        case OSError() if error.filename is not None or error.strerror:
            return Complaint(FAILED, line(str(error.filename or ""), error.strerror or str(error), None))
    return None


def complain(*lines: str) -> None:
    """The lines on standard error, under the program's name."""
    for text in lines:
        print(f"vitscale: {text}", file=sys.stderr, flush=True)


def line(where: str, what: str, hint: str | None) -> str:
    one_line = " ".join(what.split())
    suffix = f" ({' '.join(hint.split())})" if hint else ""
    return f"{where}: {one_line}{suffix}" if where else f"{one_line}{suffix}"


def exit_code_of(state: StudyState) -> int:
    """Of a command that waited for a study to end: a cancelled one did not give what was asked for."""
    return _BY_STATE.get(state, FAILED)


def _place(source: str, pointer: str) -> str:
    if not source or not pointer:
        return source or pointer
    return f"{source}#{pointer}"
