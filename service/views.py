"""What is shown of studies, trials and results: the models behind the HTTP answers and the Python client.

Times are UTC and are written as RFC 3339 with a Z. Whatever is absent is null, never left out.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from service.analysis.repeats import BetweenRuns
from service.events import ErrorCause
from service.states import Reason, StudyState, TrialState
from trainers.memory import ModelStates
from trainers.parts.rows import LinkRow, RankParts, StepParts
from trainers.telemetry.rows import Telemetry


def rfc3339(moment: datetime) -> str:
    """`moment` (timezone-aware) as UTC with microseconds and a Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


UtcTime = Annotated[datetime, PlainSerializer(rfc3339, return_type=str, when_used="json")]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunningTrial(_View):
    """The latest progress of a trial that runs now; `done` and `total` are in the phase's own unit."""

    trial: int
    attempt: int
    phase: str | None
    done: int
    total: int | None
    images_per_second: float | None


class Progress(_View):
    """`done` of `total` trials are over (skipped points count in neither).

    `seconds_left` is an estimate from the seconds that finished trials took; null before the first one and when
    nothing is left to do.
    """

    done: int
    total: int
    running: list[RunningTrial]
    seconds_left: float | None


class RayReference(_View):
    job_id: str | None  # the submission id
    dashboard_url: str | None


class StudyView(_View):
    """The answer of `GET /studies/{id}`. `trial_counts` has every trial state as a key."""

    id: str
    name: str
    description: str
    tags: list[str]
    status: StudyState
    spec: dict[str, Any]  # as posted, complete; of an imported study what its rows say, with `imported: true`
    extensions: list[dict[str, Any]] = Field(default_factory=list)  # the specs that added points since, in order
    trial_counts: dict[str, int]
    progress: Progress
    created_at: UtcTime
    started_at: UtcTime | None
    finished_at: UtcTime | None
    error: str | None
    ray: RayReference
    notes: list[str] = Field(default_factory=list)  # what went on that is no error: lost attempts, unreadable events


class StudiesPage(_View):
    studies: list[StudyView]
    next_cursor: str | None


class TrialSummary(_View):
    """One line of `GET /studies/{id}/trials`. `attempt` is the last one, 0 before the first."""

    trial: int
    repeat: int
    attempt: int
    state: TrialState
    reason: Reason | None
    skip_reason: str | None
    error: ErrorCause | None
    parameters: dict[str, Any]


class TrialsPage(_View):
    """`count` is of all the study's trials, not of this page."""

    study_id: str
    status: StudyState
    count: int
    trials: list[TrialSummary]
    next_cursor: str | None


class Overhead(_View):
    """Seconds of a trial: waiting for workers, building, compiling, warming up, measuring, taking apart, all of it."""

    queue_seconds: float | None = None
    startup_seconds: float | None = None
    compile_seconds: float | None = None
    warmup_seconds: float | None = None
    measure_seconds: float | None = None
    parts_seconds: float | None = None
    total_seconds: float | None = None


class RowMetrics(_View):
    """As `trainers.result.Metrics`, each key null where it was not measured."""

    images_per_second: float | None = None
    images_per_second_per_worker: float | None = None
    step_seconds_mean: float | None = None
    step_seconds_ci95_low: float | None = None
    step_seconds_ci95_high: float | None = None
    interval_kind: str | None = None
    step_seconds_noise_half_width: float | None = None
    step_seconds_wander_half_width: float | None = None
    wander_source: str | None = None
    correlation_steps: float | None = None
    step_seconds_p50: float | None = None
    step_seconds_p95: float | None = None
    measured_steps: int | None = None
    truncated_steps: int | None = None
    skipped_steps: int | None = None
    epoch_seconds: float | None = None
    epoch_seconds_source: str | None = None
    epoch_seconds_without_first: float | None = None
    images_seen: int | None = None
    compute_seconds: float | None = None
    compute_seconds_ci95_low: float | None = None
    compute_seconds_ci95_high: float | None = None
    data_wait_seconds: float | None = None
    data_wait_seconds_ci95_low: float | None = None
    data_wait_seconds_ci95_high: float | None = None
    straggler_wait_seconds: float | None = None
    straggler_wait_seconds_ci95_low: float | None = None
    straggler_wait_seconds_ci95_high: float | None = None
    straggler_persistent_seconds: float | None = None
    straggler_jitter_seconds: float | None = None
    communication_seconds: float | None = None
    communication_seconds_ci95_low: float | None = None
    communication_seconds_ci95_high: float | None = None
    communication_share: float | None = None
    communication_share_ci95_low: float | None = None
    communication_share_ci95_high: float | None = None
    communication_source: str | None = None
    communication_wire_bytes: float | None = None
    peak_memory_bytes: int | None = None
    model_state_bytes: int | None = None
    estimated_model_state_bytes: int | None = None
    forward_flops_per_image: float | None = None
    achieved_flops_per_second: float | None = None
    peak_flops_per_device: float | None = None
    peak_flops_source: str | None = None
    mfu: float | None = None
    train_loss: float | None = None
    train_accuracy: float | None = None
    eval_loss: float | None = None
    eval_accuracy: float | None = None


class RowQuality(_View):
    state: str = "unassessed"
    flags: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)  # a reason for each thing that is null


class AttemptView(_View):
    """One run of a trial. `study_attempt` is the Ray job it ran in.

    What follows `loss_history` is its own result; an earlier attempt has one if it was contended.
    """

    attempt: int
    study_attempt: int
    state: TrialState
    reason: Reason | None
    error: ErrorCause | None
    started_at: UtcTime
    finished_at: UtcTime | None
    overhead: Overhead
    deepspeed_config: dict[str, Any] | None  # read back from the engine
    versions: dict[str, str] | None
    loss_history: list[float]  # mean over ranks, per optimizer step, bounded
    metrics: RowMetrics | None = None
    quality: RowQuality | None = None
    telemetry: Telemetry | None = None  # the machine's, while it was measured
    parts: StepParts | None = None  # where a step's time goes, if asked for
    links: list[LinkRow] = Field(default_factory=list)  # what the links between the workers carry, if asked for


class RankView(_View):
    """One worker's part, as `trainers.result.RankRow`; null is what is not known of an imported run.

    `epoch_seconds` is the mean over the rank's epochs, of imported runs only.
    """

    rank: int
    local_rank: int | None
    node: str | None
    node_ip: str | None
    pid: int | None
    device: str | None
    device_uuid: str | None
    peak_memory_bytes: int | None
    reserved_memory_bytes: int | None
    model_states: ModelStates | None
    step_seconds_mean: float | None
    epoch_seconds: float | None
    compute_seconds: float | None
    data_wait_seconds: float | None
    straggler_wait_seconds: float | None
    communication_seconds: float | None
    parts: RankParts | None  # the same with their intervals


class EpochView(_View):
    """One whole epoch, as `trainers.result.EpochRow`; null is what is not known of an imported run."""

    epoch: int  # from 1
    epoch_seconds: float
    steps: int | None
    images_seen: int | None
    train_loss: float | None
    train_accuracy: float | None
    eval_loss: float | None
    eval_accuracy: float | None


class TrialView(TrialSummary):
    """The answer of `GET /studies/{id}/trials/{n}`. `ranks` and `epochs` are of the attempt whose result stands."""

    study_id: str
    placement: dict[str, Any]
    config: dict[str, Any] | None  # the TrialConfig as the worker gets it; a skipped point has none
    attempts: list[AttemptView]
    ranks: list[RankView]
    epochs: list[EpochView]


class LogLine(_View):
    """One line of a job's log. `position` counts lines from 0 within that study attempt."""

    attempt: int  # of the study
    position: int
    text: str


class RowHardware(_View):
    devices: list[str] = Field(default_factory=list)
    nodes: int | None = None
    backend: str | None = None
    fingerprint: str | None = None
    num_threads: int | None = None


class ResultRow(_View):
    """One trial in `GET /studies/{id}/results`, whatever its state."""

    trial: int
    repeat: int
    attempt: int
    state: TrialState
    reason: Reason | None
    parameters: dict[str, Any]
    metrics: RowMetrics
    quality: RowQuality
    overhead: Overhead
    hardware: RowHardware
    between_runs: BetweenRuns | None  # the point's runs together; null below two runs with a result


class ResultsPage(_View):
    """`count` is of all rows in the asked state, not of this page."""

    study_id: str
    status: StudyState
    count: int
    results: list[ResultRow]
    next_cursor: str | None
