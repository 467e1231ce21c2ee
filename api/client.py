"""The typed Python client of the HTTP interface.

    with Client.discover(Settings()) as client:
        study = client.create_study({"name": "first", "parameters": {...}})
        rows = list(client.iter_results(study.id))

Calls block. Every call has a timeout; only calls that may be repeated without harm are repeated, and only where the
connection failed. The token goes to the one origin it was given for: redirects are not followed.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from api.discovery import Target, checked_url, find_server, is_loopback
from api.plan_answer import PlanAnswer
from service.analysis.answer import StudyAnalysis
from service.analysis.scaling import Mode
from service.cluster import ClusterView
from service.errors import ErrorItem
from service.settings import Settings
from service.states import StudyState, TrialState
from service.views import (
    LogLine,
    ResultRow,
    ResultsPage,
    StudiesPage,
    StudyView,
    TrialsPage,
    TrialSummary,
    TrialView,
)

if TYPE_CHECKING:
    from service.study_comparison import StudyComparison

JSON = "application/json"
YAML = "application/yaml"
CSV = "text/csv"
PAGE_SIZE = 500
DEFAULT_TIMEOUT_SECONDS = 30.0

_CONNECT_TIMEOUT_SECONDS = 5.0
_RETRY_PAUSES_SECONDS = (0.1, 0.4)  # three tries in all

Query = Mapping[str, str | int | list[str] | None]
Model = TypeVar("Model")


class ClientError(Exception):
    """A call did not give what was asked for; the message is for a person."""


class ServerUnreachable(ClientError):
    """The server could not be reached, or did not answer in time."""


class UnexpectedAnswer(ClientError):
    """Something answered, but not as a VitScale server of this version does."""


class ApiError(ClientError):
    """The server said no: `status` of HTTP, the stable `code`, one sentence, and what is wrong where."""

    def __init__(self, status: int, code: str, detail: str, errors: Sequence[ErrorItem] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Logs(_Answer):
    lines: list[LogLine]


class _Preset(_Answer):
    name: str
    description: str | None = None


class _Presets(_Answer):
    presets: list[_Preset]


class _ProblemItem(_Answer):
    pointer: str = ""
    detail: str = ""
    hint: str | None = None


class _Problem(_Answer):
    code: str
    detail: str | None = None
    title: str = ""
    errors: list[_ProblemItem] = []


class Client:
    """A connection to one server. Close it, or use it as a context manager. Not for use from several threads at once.

    Raises (every call):
        ApiError: the server refused; ServerUnreachable: no answer; UnexpectedAnswer: not a VitScale answer.
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        """
        Args:
            url: http(s) address of the server, without user, query or fragment (AddressInvalid, a ValueError, else).
            timeout: seconds that a call may take to answer.
        """
        self.url = checked_url(url)
        own_machine = is_loopback(self.url)
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, _CONNECT_TIMEOUT_SECONDS)),
            follow_redirects=False,
            # A proxy from the environment must not see what is meant for this machine.
            trust_env=not own_machine,
            # Reading the certificates takes a tenth of a second, and nothing is encrypted here.
            verify=not (own_machine and self.url.startswith("http:")),
        )

    @classmethod
    def discover(cls, settings: Settings, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Self:
        """The client of VITSCALE_URL, or of the server that runs from the data directory.

        Raises:
            api.discovery.ServerNotFound: there is none; the message says how to start one.
        """
        return cls.of(find_server(settings), timeout)

    @classmethod
    def of(cls, target: Target, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> Self:
        return cls(target.url, target.token, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Studies

    def create_study(
        self, spec: Mapping[str, Any] | str, *, media: str = JSON, idempotency_key: str | None = None
    ) -> StudyView:
        """Queue a study.

        Args:
            spec: the specification as data, or as text of the type `media` (JSON or YAML).
            idempotency_key: the same key and body name the same study; one is made up where none is given, so that a
                call repeated after a lost answer does not queue the study twice.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._model(StudyView, self._send_spec("/studies", spec, media, headers))

    def plan_study(self, spec: Mapping[str, Any] | str, *, media: str = JSON) -> PlanAnswer:
        """What the study would run; nothing is stored."""
        return self._model(PlanAnswer, self._send_spec("/studies/plan", spec, media, {}))

    def list_studies(
        self,
        *,
        status: StudyState | None = None,
        name: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> StudiesPage:
        """One page of studies, newest first."""
        query: Query = {"status": status, "name": name, "tag": tag, "limit": limit, "cursor": cursor}
        return self._model(StudiesPage, self._request("GET", "/studies", query=query))

    def iter_studies(
        self, *, status: StudyState | None = None, name: str | None = None, tag: str | None = None
    ) -> Iterator[StudyView]:
        """All studies, newest first, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_studies(status=status, name=name, tag=tag, cursor=cursor)
            yield from page.studies
            cursor = page.next_cursor
            if cursor is None:
                return

    def get_study(self, study_id: str) -> StudyView:
        return self._model(StudyView, self._request("GET", _path(study_id)))

    def update_study(
        self, study_id: str, *, tags: Sequence[str] | None = None, description: str | None = None
    ) -> StudyView:
        """Change what is given; null leaves as it is, an empty description removes it."""
        changes: dict[str, Any] = {} if tags is None else {"tags": list(tags)}
        if description is not None:
            changes["description"] = description
        return self._model(StudyView, self._request("PATCH", _path(study_id), body=changes))

    def delete_study(self, study_id: str) -> None:
        """Delete a study in a final state, with all its rows (ApiError WRONG_STATE in any other)."""
        self._request("DELETE", _path(study_id))

    def compare_studies(self, a: str, b: str, *, tolerance: str | float | None = None) -> "StudyComparison":
        """Study `b` against study `a`, point by point. `tolerance`: "5%" or 0.05 (5 % where none is given)."""
        from service.study_comparison import StudyComparison  # with scipy

        shown = f"{tolerance:.12f}" if isinstance(tolerance, float) else tolerance
        query: Query = {"a": a, "b": b, "tolerance": shown}
        return self._model(StudyComparison, self._request("GET", "/studies/compare", query=query))

    def cancel_study(self, study_id: str) -> StudyView:
        return self._act(study_id, "cancel")

    def resume_study(self, study_id: str) -> StudyView:
        """Queue what never finished."""
        return self._act(study_id, "resume")

    def retry_study(self, study_id: str) -> StudyView:
        """Queue what never finished, and what failed."""
        return self._act(study_id, "retry")

    def extend_study(self, study_id: str, spec: Mapping[str, Any] | str, *, media: str = JSON) -> StudyView:
        """Queue the points of a specification that the study, which is over, does not have yet."""
        return self._model(StudyView, self._send_spec(f"{_path(study_id)}/extend", spec, media, {}, repeatable=False))

    def import_study(
        self,
        rows: str,
        name: str,
        *,
        mode: Mode = "none",
        renames: Mapping[str, str] | None = None,
        description: str = "",
        tags: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> StudyView:
        """A finished study from rows that were measured elsewhere.

        Args:
            rows: CSV with a header; `service.measured_rows` describes its columns.
            mode: strong, weak (dataset_fraction is per worker) or none.
            renames: our name of each column that has another one; an empty one passes the column over.
            idempotency_key: as for `create_study`.
        """
        query: Query = {
            "name": name,
            "mode": mode,
            "map": [f"{theirs}={ours}" for theirs, ours in (renames or {}).items()],
            "description": description or None,
            "tag": list(tags),
        }
        headers = {"Content-Type": CSV, "Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._model(
            StudyView,
            self._request(
                "POST", "/studies/import", query=query, content=rows.encode(), headers=headers, repeatable=True
            ),
        )

    # Trials and results

    def list_trials(self, study_id: str, *, limit: int = PAGE_SIZE, cursor: str | None = None) -> TrialsPage:
        query: Query = {"limit": limit, "cursor": cursor}
        return self._model(TrialsPage, self._request("GET", f"{_path(study_id)}/trials", query=query))

    def iter_trials(self, study_id: str) -> Iterator[TrialSummary]:
        """All trials in the order of their numbers, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_trials(study_id, cursor=cursor)
            yield from page.trials
            cursor = page.next_cursor
            if cursor is None:
                return

    def get_trial(self, study_id: str, number: int) -> TrialView:
        return self._model(TrialView, self._request("GET", f"{_path(study_id)}/trials/{number}"))

    def list_results(
        self, study_id: str, *, state: TrialState | None = None, limit: int = PAGE_SIZE, cursor: str | None = None
    ) -> ResultsPage:
        query: Query = {"format": "json", "state": state, "limit": limit, "cursor": cursor}
        return self._model(ResultsPage, self._request("GET", f"{_path(study_id)}/results", query=query))

    def iter_results(self, study_id: str, *, state: TrialState | None = None) -> Iterator[ResultRow]:
        """All results rows in the order of the trials' numbers, page by page."""
        cursor: str | None = None
        while True:
            page = self.list_results(study_id, state=state, cursor=cursor)
            yield from page.results
            cursor = page.next_cursor
            if cursor is None:
                return

    def get_results_csv(self, study_id: str, *, state: TrialState | None = None) -> str:
        """All results rows as CSV with a header."""
        query: Query = {"format": "csv", "state": state}
        return self._request("GET", f"{_path(study_id)}/results", query=query).text

    def get_results_parquet(self, study_id: str, *, state: TrialState | None = None) -> bytes:
        """All results rows as a Parquet file with the columns of the CSV."""
        query: Query = {"format": "parquet", "state": state}
        return self._request("GET", f"{_path(study_id)}/results", query=query).content

    def get_analysis(
        self,
        study_id: str,
        *,
        forecast: Sequence[int] = (),
        sweet_spot_ratio: float | None = None,
        efficiency: float | None = None,
    ) -> StudyAnalysis:
        """What the study's rows say together.

        Args:
            forecast: world sizes; empty: two and four times the largest of each series.
            sweet_spot_ratio: the share of the best throughput that a batch size has to reach, above 0 to 1.
            efficiency: what the largest useful world size has to keep, above 0 to 1.
        """
        query: Query = {
            "forecast": ",".join(map(str, forecast)) or None,
            "sweet_spot_ratio": None if sweet_spot_ratio is None else repr(sweet_spot_ratio),
            "efficiency": None if efficiency is None else repr(efficiency),
        }
        return self._model(StudyAnalysis, self._request("GET", f"{_path(study_id)}/analysis", query=query))

    def get_trial_logs(self, study_id: str, number: int) -> list[LogLine]:
        """The lines that a trial's workers wrote, in order."""
        path = f"{_path(study_id)}/trials/{number}/logs"
        return self._model(_Logs, self._request("GET", path)).lines

    def get_study_logs(self, study_id: str) -> list[LogLine]:
        """The lines that a study's jobs wrote beside its trials' own, in order."""
        return self._model(_Logs, self._request("GET", f"{_path(study_id)}/logs")).lines

    # The service itself

    def healthy(self) -> bool:
        """Whether the server answers at all. Needs no token, and sends none."""
        return self._probe("/healthz") is not None

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the server can run studies now, and what it says of its parts. Needs no token, and sends none."""
        response = self._probe("/readyz")
        if response is None:
            raise ServerUnreachable(f"{self.url} does not answer")
        try:
            said = _OBJECT.validate_json(response.content)
        except ValidationError:
            said = {}
        return response.is_success, said

    def _probe(self, path: str) -> httpx.Response | None:
        request = self._http.build_request("GET", path)
        request.headers.pop("Authorization", None)
        try:
            return self._http.send(request)
        except httpx.RequestError:
            return None

    def get_cluster(self) -> ClusterView:
        """Nodes, devices and labels, and where Ray's dashboard is, asked now."""
        return self._model(ClusterView, self._request("GET", "/cluster"))

    def list_presets(self) -> dict[str, str | None]:
        """The presets' names, each with its description."""
        presets = self._model(_Presets, self._request("GET", "/presets")).presets
        return {preset.name: preset.description for preset in presets}

    def get_preset(self, name: str) -> str:
        """One preset as YAML text that can be posted as it is."""
        return self._request("GET", f"/presets/{quote(name, safe='')}").text

    def get_version(self) -> dict[str, Any]:
        return self._model(_OBJECT, self._request("GET", "/version"))

    # How calls are made

    def _act(self, study_id: str, verb: Literal["cancel", "resume", "retry"]) -> StudyView:
        return self._model(StudyView, self._request("POST", f"{_path(study_id)}/{verb}"))

    def _send_spec(
        self,
        path: str,
        spec: Mapping[str, Any] | str,
        media: str,
        headers: Mapping[str, str],
        *,
        repeatable: bool = True,
    ) -> httpx.Response:
        if isinstance(spec, str):
            content, kind = spec.encode(), media
        else:
            content, kind = json.dumps(spec, allow_nan=False).encode(), JSON
        sent = {"Content-Type": kind, **headers}
        return self._request("POST", path, content=content, headers=sent, repeatable=repeatable)

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> httpx.Response:
        """One call. `repeatable`: asking twice does no harm (by default: GET only)."""
        request = self._http.build_request(
            method,
            path,
            params={key: value for key, value in (query or {}).items() if value is not None},
            json=body,
            content=content,
            headers=dict(headers or {}),
        )
        pauses = _RETRY_PAUSES_SECONDS if (method == "GET" if repeatable is None else repeatable) else ()
        for pause in (*pauses, None):
            try:
                response = self._http.send(request)
                break
            except httpx.RequestError as problem:
                if pause is None:
                    raise ServerUnreachable(f"{self.url} does not answer ({_named(problem)})") from problem
                time.sleep(pause)
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _refusal(self, response: httpx.Response) -> ClientError:
        if response.is_redirect:
            return UnexpectedAnswer(
                f"{self.url} redirects to {response.headers.get('Location', '?')}; the token is not sent there: set "
                "VITSCALE_URL to the server's own address"
            )
        try:
            problem = _Problem.model_validate_json(response.content)
        except ValidationError:
            return UnexpectedAnswer(
                f"{self.url} answered {response.status_code} {response.reason_phrase} and is perhaps no VitScale server"
            )
        items = [ErrorItem(item.pointer, item.detail, item.hint) for item in problem.errors]
        return ApiError(response.status_code, problem.code, problem.detail or problem.title, items)

    def _model(self, kind: type[Model] | TypeAdapter[Model], response: httpx.Response) -> Model:
        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        try:
            return adapter.validate_json(response.content)
        except ValidationError as problem:
            where = ".".join(str(part) for part in problem.errors()[0]["loc"]) or "the answer"
            raise UnexpectedAnswer(
                f"the answer of {self.url}{response.request.url.path} is not understood at {where}: is the server "
                "of the same version as this client?"
            ) from problem


_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _path(study_id: str) -> str:
    return f"/studies/{quote(study_id, safe='')}"


def _named(problem: httpx.RequestError) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
