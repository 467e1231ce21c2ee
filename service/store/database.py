"""The database: connections, the unit of work, and bringing the schema up to date.

Two kinds of transactions. `session()` writes: on SQLite it takes the write lock when it begins, so a unit of work never
fails half-way because another writer came first; a second writer waits (busy_timeout). `reading()` never waits for a
writer (WAL). On PostgreSQL both are plain transactions, and writers lock the study's row (`study_rows.locked_study`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

MIGRATIONS = Path(__file__).with_name("migrations")

BUSY_TIMEOUT_SECONDS = 15.0  # how long one SQLite writer waits for another; a unit of work takes milliseconds
POOL_SIZE = 8  # connections kept; the server's threads share them
POOL_OVERFLOW = 40  # one per thread of the server's pool at most
_UPGRADE_LOCK = 0x56_69_74_53  # "VitS": PostgreSQL's advisory lock, so that two servers upgrade one after the other


class SchemaUnknown(Exception):
    """The database has a schema that this version does not know."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"The database was made by a later version of VitScale (its schema is {revision}): run that one"
        )


class Database:
    """One database, shared by all threads of a process.

    Args:
        url: an SQLAlchemy URL. SQLite needs a file: threads and processes share it.

    Raises:
        ValueError: the URL is malformed or names an in-memory SQLite database.
    """

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        if self._is_sqlite:
            _prepare_sqlite_file(parsed)
        self._engine = create_engine(
            parsed,
            pool_size=POOL_SIZE,
            max_overflow=POOL_OVERFLOW,
            pool_pre_ping=not self._is_sqlite,
        )
        if self._is_sqlite:
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._write = sessionmaker(self._engine, expire_on_commit=False)
        self._read = sessionmaker(self._engine.execution_options(vitscale_reading=True))

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A unit of work: commits at the end, rolls back on any error."""
        with self._write.begin() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A snapshot to read from; nothing is ever written."""
        with self._read() as session:
            yield session

    def upgrade(self) -> None:
        """Brings the schema to this version's. Several processes may do it at once; where all is done it is quick.

        Raises:
            SchemaUnknown: a later version of VitScale made this database.
        """
        # Imported here: who only uses an up-to-date database does not pay for Alembic.
        from alembic import command
        from alembic.config import Config
        from alembic.script.revision import ResolutionError
        from alembic.util import CommandError

        if self._is_sqlite:
            self._switch_to_wal()
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        # One transaction (SQLite: with the write lock from its beginning), so the second of two processes waits and
        # then sees that nothing is left to do.
        with self._engine.begin() as connection:
            if not self._is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                if isinstance(error.__cause__, ResolutionError):
                    raise SchemaUnknown(error.__cause__.argument) from error
                raise

    def close(self) -> None:
        """Closes all connections; those in use close when they are given back."""
        self._engine.dispose()

    def _switch_to_wal(self) -> None:
        """The mode is kept in the file. Switching needs the file alone, which SQLite does not always wait for."""
        deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
        while True:
            raw = self._engine.raw_connection()
            try:
                cursor = raw.cursor()
                (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
                if mode != "wal":
                    (mode,) = cursor.execute("PRAGMA journal_mode=WAL").fetchone()
                return
            except _sqlite_error() as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise OperationalError("PRAGMA journal_mode=WAL", None, error) from error
                time.sleep(0.02)
            finally:
                raw.close()


def _sqlite_error() -> type[Exception]:
    import sqlite3  # only where SQLite is used: some Pythons come without it

    return sqlite3.OperationalError


def _prepare_sqlite_file(url: URL) -> None:
    if url.database in (None, "", ":memory:") or str(url.database).startswith("file:"):
        raise ValueError(
            "An in-memory SQLite database cannot be shared by threads: give a file, sqlite:////path/to/vitscale.db"
        )
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # No implicit BEGIN by the driver: _begin_sqlite says which kind.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_SECONDS * 1000)}")
    cursor.execute("PRAGMA foreign_keys=ON")
    # With WAL a power cut may lose the last commits, never the database; the job's log is read again then.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reading = connection.get_execution_options().get("vitscale_reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
