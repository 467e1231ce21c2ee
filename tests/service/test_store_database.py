"""The database: its unit of work, its settings on SQLite, and its schema."""

import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, select, text, update
from sqlalchemy.exc import IntegrityError, StatementError

from service.store import Database
from service.store.database import MIGRATIONS, SchemaUnknown
from service.store.study_rows import insert_study
from service.store.tables import Base, Study, StudyTag, Trial

ROOT = Path(__file__).parents[2]


_STUDY_OF_0002 = (
    "INSERT INTO studies (id, name, name_folded, description, tags, spec, status, notes, created_at, queued_at,"
    " attempt, attempts_without_progress, log_position, last_seq, finished_event, finished_cancelled, num_log_lines)"
    " VALUES ('a', 'a', 'a', '', '[]', '{}', 'succeeded', '[]', '2026-01-01', '2026-01-01', 1, 0, 0, 0, 0, 0, 0)",
    "INSERT INTO trials (id, study_id, number, repeat, run_order, point_hash, state, attempt, interrupted, placement,"
    " parameters_json) VALUES (1, 'a', 1, 0, 0, 'h', 'succeeded', 1, 0, '{}', '{}')",
    "INSERT INTO attempts (id, study_id, trial_id, number, study_attempt, state, started_at, done, worker_pids,"
    " loss_history) VALUES (1, 'a', 1, 1, 1, 'succeeded', '2026-01-01', 0, '[]', '[]')",
    "INSERT INTO attempt_ranks (attempt_id, rank, local_rank, node, node_ip, pid, device, peak_memory_bytes,"
    " step_seconds_mean) VALUES (1, 0, 0, 'n1', '10.0.0.1', 7, 'T4', 1000, 0.5)",
    "INSERT INTO attempt_epochs (attempt_id, epoch, epoch_seconds, steps, images_seen, train_accuracy) VALUES"
    " (1, 1, 12.0, 10, 80, 0.25)",
)


def add_study(database: Database, name: str = "a") -> str:
    with database.session() as session:
        return insert_study(session, name=name, description="", tags=["t"], spec={}).id


def names(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(Study.name)))


class TestUnitOfWork:
    def test_it_commits_at_its_end(self, database: Database) -> None:
        add_study(database)
        assert names(database) == ["a"]

    def test_it_leaves_nothing_behind_on_an_error(self, database: Database) -> None:
        def write_and_fail() -> None:
            with database.session() as session:
                insert_study(session, name="a", description="", tags=[], spec={})
                session.flush()
                raise RuntimeError

        with pytest.raises(RuntimeError):
            write_and_fail()
        assert names(database) == []

    def test_a_reader_sees_the_state_before_and_does_not_wait_for_a_writer(self, database: Database) -> None:
        with database.session() as session:
            insert_study(session, name="a", description="", tags=[], spec={})
            session.flush()
            began = time.monotonic()
            assert names(database) == []
            assert time.monotonic() - began < 5  # a waiting reader would wait for busy_timeout, 15 s
        assert names(database) == ["a"]

    def test_a_reader_keeps_its_snapshot_while_others_write(self, database: Database) -> None:
        with database.reading() as session:
            assert session.scalars(select(Study.name)).all() == []
            add_study(database)
            assert session.scalars(select(Study.name)).all() == []

    @pytest.mark.slow
    def test_a_second_writer_waits_for_the_first(self, database: Database, tmp_path: Path) -> None:
        code = (
            "from service.store import Database; from tests.service.test_store_database import add_study\n"
            f"database = Database('sqlite:///{tmp_path}/vitscale.db'); print('ready', flush=True)\n"
            "add_study(database, 'b')"
        )
        with database.session() as session:
            other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            insert_study(session, name="a", description="", tags=[], spec={})
        assert other.wait(timeout=30) == 0
        other.stdout.close()
        assert sorted(names(database)) == ["a", "b"]


class TestSqlite:
    def test_it_runs_in_wal_mode_with_foreign_keys(self, database: Database) -> None:
        with database.reading() as session:
            assert session.scalar(text("PRAGMA journal_mode")) == "wal"
            assert session.scalar(text("PRAGMA foreign_keys")) == 1
            assert session.scalar(text("PRAGMA busy_timeout")) == 15_000

    def test_a_row_of_no_study_is_refused(self, database: Database) -> None:
        with pytest.raises(IntegrityError), database.session() as session:
            session.execute(insert(StudyTag).values(study_id="nope", tag="t"))

    def test_the_folder_is_made(self, tmp_path: Path) -> None:
        database = Database(f"sqlite:///{tmp_path}/new/folder/x.db")
        database.upgrade()
        database.close()
        assert (tmp_path / "new/folder/x.db").exists()

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
    def test_a_database_in_memory_is_refused(self, url: str) -> None:
        with pytest.raises(ValueError, match="give a file"):
            Database(url)


class TestTimes:
    def test_they_come_back_in_utc_whatever_the_zone_they_were_given_in(self, database: Database) -> None:
        study_id = add_study(database)
        moment = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
        with database.session() as session:
            study = session.get(Study, study_id)
            assert study is not None
            study.started_at = moment
        with database.reading() as session:
            stored = session.scalar(select(Study.started_at))
        assert stored == moment
        assert stored is not None
        assert stored.tzinfo is UTC

    def test_one_without_a_zone_is_refused(self, database: Database) -> None:
        add_study(database)
        change = update(Study).values(started_at=datetime(2026, 3, 1))
        with pytest.raises(StatementError, match="no time zone"), database.session() as session:
            session.execute(change)


class TestConstraints:
    TRIAL: ClassVar = {
        "repeat": 0,
        "run_order": 0,
        "point_hash": "h",
        "state": "pending",
        "attempt": 0,
        "interrupted": False,
    }

    def insert(self, database: Database, *trials: dict[str, object]) -> None:
        study_id = add_study(database)
        with database.session() as session:
            rest = {"study_id": study_id, "placement": {}, "config": {}, "parameters_json": "{}"}
            session.execute(insert(Trial), [{**self.TRIAL, **rest, **trial} for trial in trials])

    def test_a_point_is_in_a_study_once_per_repeat(self, database: Database) -> None:
        self.insert(database, {"number": 1}, {"number": 2, "repeat": 1})
        with pytest.raises(IntegrityError):
            self.insert(database, {"number": 1}, {"number": 2})

    def test_a_number_is_in_a_study_once(self, database: Database) -> None:
        with pytest.raises(IntegrityError):
            self.insert(database, {"number": 1}, {"number": 1, "point_hash": "other"})


class TestSchema:
    @pytest.mark.usefixtures("database")
    def test_tables_and_migrations_agree(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'vitscale.db'}")
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, Base.metadata) == []
        engine.dispose()

    def test_rows_of_an_earlier_schema_are_kept_and_imported_ones_do_not_go_back(self, tmp_path: Path) -> None:
        engine = create_engine(f"sqlite:///{tmp_path / 'vitscale.db'}")
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "0002")
            for statement in _STUDY_OF_0002:
                connection.execute(text(statement))
            command.upgrade(config, "0004")
            rank = connection.execute(text("SELECT * FROM attempt_ranks")).mappings().one()
            epoch = connection.execute(text("SELECT * FROM attempt_epochs")).mappings().one()
            assert (rank["node"], rank["step_seconds_mean"], rank["compute_seconds"]) == ("n1", 0.5, None)
            assert (epoch["epoch"], epoch["train_accuracy"]) == (1, 0.25)
            assert connection.scalar(text("SELECT extensions FROM studies")) == "[]"
            connection.execute(text("UPDATE attempt_ranks SET node = NULL"))  # it may be unknown now
            connection.execute(text("UPDATE attempts SET study_attempt = 0"))
        with engine.connect() as connection:
            connection.execute(text("PRAGMA foreign_keys=ON"))
            connection.commit()
            config.attributes["connection"] = connection
            command.downgrade(config, "0002")
            assert connection.scalar(text("SELECT count(*) FROM studies")) == 0
        engine.dispose()

    def test_upgrading_again_changes_nothing(self, database: Database) -> None:
        add_study(database)
        database.upgrade()
        assert names(database) == ["a"]

    def test_a_database_of_a_later_version_is_refused_and_left_alone(self, database: Database) -> None:
        with database.session() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(SchemaUnknown, match="9999"):
            database.upgrade()

    def test_a_failed_upgrade_leaves_an_empty_database(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from alembic import op

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the disk is full")

        monkeypatch.setattr(op, "create_index", fail)
        database = Database(f"sqlite:///{tmp_path / 'vitscale.db'}")
        with pytest.raises(RuntimeError, match="disk"):
            database.upgrade()
        monkeypatch.undo()
        with sqlite3.connect(tmp_path / "vitscale.db") as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
        database.upgrade()
        assert add_study(database)
        database.close()

    @pytest.mark.slow
    def test_several_processes_may_upgrade_a_fresh_database_at_once(self, tmp_path: Path) -> None:
        code = (
            "import sys; from service.store import Database; import alembic.command\n"
            f"database = Database('sqlite:///{tmp_path}/x.db'); print('ready', flush=True); sys.stdin.readline()\n"
            "database.upgrade(); database.close()"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            for _ in range(3)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            process.communicate(timeout=60)
        assert [process.returncode for process in processes] == [0, 0, 0]
        database = Database(f"sqlite:///{tmp_path}/x.db")
        assert add_study(database)
        database.close()
