"""What a whole study's trials measured: their ranks, epochs and parts, in one query each.

Of a trial's attempts the last with a result counts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from service.analysis.observation import EpochObservation, RankObservation
from service.analysis_input import TakenApart
from service.states import TrialState
from service.store.tables import Attempt, AttemptEpoch, AttemptRank, Base, Trial
from trainers.parts.rows import LinkRow, StepParts

_RENAMED: Final[Mapping[str, str]] = {"step_seconds_mean": "step_seconds"}


def rank_observations(session: Session, study_id: str) -> dict[int, list[RankObservation]]:
    """By trial number, in the order of the ranks."""
    found = _by_trial(session, study_id, AttemptRank, RankObservation, "rank", also=("parts", "node_ip"))
    return {trial: _ranks(rows) for trial, rows in found.items()}


def _ranks(rows: Sequence[Mapping[str, Any]]) -> list[RankObservation]:
    """Nodes are named as those of links are: by host name, with the address where two share it."""
    addresses: dict[str | None, set[str | None]] = {}
    for row in rows:
        addresses.setdefault(row["node"], set()).add(row["node_ip"])
    ranks = []
    for row in rows:
        node, compute = row["node"], (row["parts"] or {}).get("compute") or {}
        known = {key: value for key, value in row.items() if key not in {"node", "node_ip", "parts"}}
        ranks.append(
            RankObservation(
                **known,
                node=node if len(addresses[node]) == 1 else f"{node} ({row['node_ip']})",
                compute_low_seconds=compute.get("ci95_low"),
                compute_high_seconds=compute.get("ci95_high"),
            )
        )
    return ranks


def epoch_observations(session: Session, study_id: str) -> dict[int, list[EpochObservation]]:
    """By trial number, in order."""
    return {
        trial: [EpochObservation(**row) for row in rows]
        for trial, rows in _by_trial(session, study_id, AttemptEpoch, EpochObservation, "epoch").items()
    }


def taken_apart(session: Session, study_id: str) -> dict[int, TakenApart]:
    """By trial number: those that took their step apart."""
    parts, links = Attempt.result["parts"], Attempt.result["links"]
    query = (
        select(Trial.number, Attempt.number, parts, links)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .where(Trial.study_id == study_id, Trial.state == TrialState.SUCCEEDED, Attempt.state == TrialState.SUCCEEDED)
        .order_by(Trial.number, Attempt.number)
    )
    found = _of_last_attempts(session.execute(query), ["parts", "links"])
    return {
        trial: TakenApart(
            parts=None if row["parts"] is None else StepParts.model_validate(row["parts"]),
            links=[LinkRow.model_validate(link) for link in row["links"] or ()],
        )
        for trial, (row,) in found.items()
        if row["parts"] or row["links"]
    }


def _by_trial(
    session: Session, study_id: str, table: type[Base], observation: type[Any], order: str, also: Collection[str] = ()
) -> dict[int, list[dict[str, Any]]]:
    """The columns that the observation has a field for, and some more, as keywords."""
    known = {field.name for field in fields(observation)} | set(also)
    columns = [c for c in table.__table__.columns if _RENAMED.get(c.name, c.name) in known]
    names = [_RENAMED.get(column.name, column.name) for column in columns]
    query: Select[Any] = (
        select(Trial.number, Attempt.number, *columns)
        .join(Attempt, Attempt.trial_id == Trial.id)
        .join(table, table.__table__.c.attempt_id == Attempt.id)
        .where(Trial.study_id == study_id, Trial.state == TrialState.SUCCEEDED, Attempt.state == TrialState.SUCCEEDED)
        .order_by(Trial.number, Attempt.number, table.__table__.c[order])
    )
    return _of_last_attempts(session.execute(query), names)


def _of_last_attempts(found: Iterable[Any], names: list[str]) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    last: dict[int, int] = {}
    for trial, attempt, *values in found:
        if last.get(trial) != attempt:
            last[trial], rows[trial] = attempt, []
        rows[trial].append(dict(zip(names, values, strict=True)))
    return rows
