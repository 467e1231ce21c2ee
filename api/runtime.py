"""What stands behind the routes: database, queue and Ray, started and stopped with the application.

The database's and Ray's libraries are imported when the server starts, so that importing the application is fast and
starts nothing.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from api.data_dir import StartRefused, ensure_token, prepare_data_dir
from api.ray_watch import RayWatch
from api.server_record import ServerLock
from service.errors import RayUnreachable
from service.settings import Settings

if TYPE_CHECKING:
    from pydantic import SecretStr

    from service.cluster import ClusterView
    from service.dispatch import Dispatcher
    from service.ray_connection import Head
    from service.store import Database
    from service.studies import Studies

DISPATCHER_STOP_SECONDS = 10.0
STOP_SECONDS = 40.0  # all of it: the dispatcher's bound, the head's own, and some air
CLUSTER_CALLS = 4  # at one time: with a hung Ray, each holds a thread until its timeout
log = logging.getLogger(__name__)


class Runtime:
    """The running parts of one server.

    Args:
        with_ray: False runs neither queue nor Ray head: studies are kept and shown, and none is started.
        lock: taken already by who starts the server; else it is taken at the start, so that a second worker process
            of the same server does not come up (SQLite has one writer, and Ray one head).
    """

    def __init__(self, settings: Settings, *, with_ray: bool = True, lock: ServerLock | None = None) -> None:
        self.settings = settings
        self.studies: Studies | None = None
        self._with_ray = with_ray
        self._lock = lock or ServerLock(settings.data_dir)
        self._database: Database | None = None
        self._dispatcher: Dispatcher | None = None
        self._head: Head | None = None
        self._watch: RayWatch | None = None
        self._stop_guard = threading.Lock()
        self._cluster_calls = asyncio.Semaphore(CLUSTER_CALLS)

    def start(self, *, no_auth: bool) -> "SecretStr | None":
        """Opens the database and starts the queue; Ray comes up in the background. Once started, it does nothing more.

        Returns:
            The token that callers need, or None with `no_auth`.

        Raises:
            StartRefused: the data directory, its lock, its token or the database cannot be used.
            RayRefused: VITSCALE_RAY_DASHBOARD_URL is no address of a dashboard.
        """
        from service.studies import Studies

        if not self._lock.is_held:
            prepare_data_dir(self.settings.data_dir)
            self._lock.acquire()
        try:
            token = None if no_auth else ensure_token(self.settings)
            if self.studies is None:
                self._database = self._open_database()
                wake = self._start_ray(self._database) if self._with_ray else _nobody_waits
                self.studies = Studies(self._database, data_roots=self.settings.data_roots, wake=wake)
        except BaseException:
            self.stop()
            raise
        return token

    def _open_database(self) -> "Database":
        from sqlalchemy.exc import SQLAlchemyError

        from service.store import Database

        try:
            database = Database(self.settings.resolved_database_url)
            database.upgrade()
        except (SQLAlchemyError, ValueError, OSError) as error:
            log.debug("The database cannot be used", exc_info=True)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StartRefused(f"The database cannot be used ({reason}): see VITSCALE_DATABASE_URL") from None
        return database

    def _start_ray(self, database: "Database") -> Callable[[], None]:
        from service.dispatch import Dispatcher
        from service.ray_head import head_of

        self._head = head_of(self.settings)
        self._dispatcher = Dispatcher(database, self.settings, self._head)
        self._dispatcher.start()  # which also starts the head, if it is ours, and keeps it
        self._watch = RayWatch(self._head, self.settings.ray_timeout_seconds)
        self._watch.start()
        return self._dispatcher.wake

    def stop(self) -> None:
        """Ends what `start` began, in reverse. May be called twice, and from two threads: the second one waits."""
        with self._stop_guard:
            self.studies = None
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                dispatcher.stop(DISPATCHER_STOP_SECONDS)
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.stop()
            head, self._head = self._head, None
            if head is not None:
                head.stop()
            database, self._database = self._database, None
            if database is not None:
                database.close()
            self._lock.release()

    def stop_within(self, seconds: float) -> bool:
        """Stops, and does not wait longer than that. Returns whether all was stopped."""
        thread = threading.Thread(target=self.stop, name="stop", daemon=True)
        thread.start()
        thread.join(seconds)
        return not thread.is_alive()

    @property
    def ray_problem(self) -> str | None:
        """Why Ray cannot be used now, or None: what the last look in the background saw."""
        if not self._with_ray:
            return "The server was started without Ray"
        watch, dispatcher = self._watch, self._dispatcher
        if watch is None or dispatcher is None:
            return "The server is starting or stopping"
        # The dispatcher knows why a head of our own does not come up; the watch only sees that it is not there.
        return watch.problem and (dispatcher.ray_problem or watch.problem)

    def database_problem(self) -> str | None:
        """Asks the database; why it does not answer, or None."""
        from sqlalchemy import text
        from sqlalchemy.exc import SQLAlchemyError

        database = self._database
        if database is None:
            return "The server is starting or stopping"
        try:
            with database.reading() as session:
                session.execute(text("SELECT 1"))
        except SQLAlchemyError as error:
            log.warning("The database does not answer: %s", error)
            return f"The database does not answer ({type(error).__name__}); the server's log has the cause"
        return None

    async def describe_cluster(self) -> "ClusterView":
        """The cluster's nodes and resources, asked now. Calls wait for each other on the event loop, not in threads.

        Raises:
            RayUnreachable: no answer in time.
            RayRefused: Ray did not accept the token.
        """
        head = self._head
        if head is None:
            raise RayUnreachable(self.ray_problem or "Ray is not running")
        from service.cluster import describe

        timeout = self.settings.ray_timeout_seconds
        try:
            async with asyncio.timeout(timeout), self._cluster_calls:
                return await asyncio.to_thread(lambda: describe(head.connection, timeout))
        except TimeoutError:
            raise RayUnreachable(f"Ray did not answer within {timeout:g} s") from None


def _nobody_waits() -> None:
    """Without a dispatcher there is nobody to wake."""
