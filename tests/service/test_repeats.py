"""Repeats of one point: their mean, its interval, and where a reader finds them."""

import csv
import json
from io import StringIO

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.analysis.repeats import between_runs
from service.canonical import point_hash
from service.store import Database
from service.store.database import MIGRATIONS
from service.studies import Studies
from tests.service.factories import Job, begin, create, feed, trial_result

seconds = st.floats(1e-4, 1e3)


@settings(deadline=None)
@given(st.lists(seconds, min_size=2, max_size=40).filter(lambda runs: len(set(runs)) > 1))
def test_the_interval_is_scipys(runs: list[float]) -> None:
    together = between_runs(runs, 64)
    assert together is not None
    low, high = stats.t.interval(0.95, len(runs) - 1, loc=np.mean(runs), scale=stats.sem(runs))
    # The table of Student's t has four digits.
    assert together.step_seconds_ci95_low == pytest.approx(low, rel=1e-3, abs=1e-3 * (high - low) + 1e-12)
    assert together.step_seconds_ci95_high == pytest.approx(high, rel=1e-3, abs=1e-3 * (high - low) + 1e-12)
    assert together.images_per_second * together.step_seconds_mean == pytest.approx(64)
    assert together.spread == pytest.approx((max(runs) - min(runs)) / float(np.mean(runs)))


def test_one_run_has_no_interval_between_runs() -> None:
    assert between_runs([], 64) is None
    assert between_runs([0.5], 64) is None


def test_the_intervals_cover_the_mean_of_all_possible_runs_in_95_of_100_studies() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.05, size=(4000, 3))
    covered = 0
    for runs in draws:
        together = between_runs(runs.tolist(), 1)
        assert together is not None
        covered += together.step_seconds_ci95_low <= 1.0 <= together.step_seconds_ci95_high
    assert covered / 4000 == pytest.approx(0.95, abs=0.015)


def measured(studies: Studies, database: Database, step_seconds: list[float | None]) -> str:
    """A study of two points and two repeats: trials 1 and 3 are runs of one point. None: that trial fails."""
    view = create(studies, micro_batches=(4, 8), measurement={"order": "given", "repeats": 2})
    plan = begin(database, view.id)
    job = Job(plan)
    feed(
        database,
        plan,
        [
            job.failed(number)
            if mean is None
            else job.succeeded(number, result=trial_result(metrics={"step_seconds_mean": mean}))
            for number, mean in enumerate(step_seconds, start=1)
        ],
    )
    return view.id


def test_every_row_of_a_point_shows_its_runs_together(database: Database, studies: Studies) -> None:
    study_id = measured(studies, database, [0.10, 0.20, 0.12, None])
    first, second, third, fourth = studies.results(study_id).results
    assert first.between_runs == third.between_runs == between_runs([0.10, 0.12], 4)
    assert first.metrics.interval_kind == "within_run"
    assert second.between_runs is None  # its second run failed
    assert fourth.between_runs is None
    rows = list(csv.DictReader(StringIO(studies.results_csv(study_id), newline="")))
    assert [row["between_runs_runs"] for row in rows] == ["2", "", "2", ""]
    assert float(rows[0]["between_runs_step_seconds_mean"]) == pytest.approx(0.11)


def test_a_run_that_is_taken_up_again_counts_once_it_is_over(database: Database, studies: Studies) -> None:
    study_id = measured(studies, database, [0.10, 0.20, 0.12, None])
    with database.session() as session:
        session.execute(sa.text("UPDATE trials SET state = 'cancelled' WHERE number = 3"))
        session.execute(sa.text("UPDATE studies SET status = 'cancelled'"))
    studies.resume(study_id)
    assert studies.results(study_id).results[0].between_runs is None


def test_stored_rows_get_the_new_column(database: Database, studies: Studies) -> None:
    study_id = measured(studies, database, [0.10, 0.20, 0.12, None])
    before = studies.results(study_id)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database._engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
        command.upgrade(config, "head")
    assert studies.results(study_id) == before


def test_stored_trials_get_compile_switched_off_and_the_identity_that_goes_with_it(
    database: Database, studies: Studies
) -> None:
    study_id = measured(studies, database, [0.10, 0.20, 0.12, None])
    before = studies.results(study_id)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    stored = sa.text("SELECT parameters_json, outcome_json, point_hash FROM trials ORDER BY id")
    with database._engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0002")
        earlier = connection.execute(stored).all()
        command.upgrade(config, "head")
        now = connection.execute(stored).all()
    for row in earlier:
        assert "compile" not in row.parameters_json + (row.outcome_json or "")
        assert row.point_hash == point_hash(json.loads(row.parameters_json))
    for row in now:
        assert json.loads(row.parameters_json)["compile"] is False
        assert row.point_hash == point_hash(json.loads(row.parameters_json))
    assert studies.results(study_id) == before
