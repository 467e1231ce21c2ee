"""Following a job's log over the Jobs API's WebSocket.

Ray replays the log from its start on every connect. What was seen of it (2.60): it compresses frames that its own proxy
then cannot read, so compression must not be offered; it answers no ping; a stream may end early, and the end of the
stream is not the end of the job; a chunk may end within a line; and as it reads with universal newlines,
"\\r" and "\\n" written apart are two line ends when followed live and one in a replay. Ray's own "Running entrypoint"
may come after the job's first lines.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from service.errors import RayRefused, RayUnreachable
from service.ray_connection import RayConnection
from service.ray_http import refused_authentication, uses_proxy

LogLines = list[tuple[int, str]]  # (position, line without its end)

TICK_SECONDS = 0.5  # without news the reader gets an empty batch this often, to look at other things
MAX_BATCH_LINES = 500  # lines handed over at once, so that each batch is a short transaction
MAX_LINE_CHARACTERS = 8 * 1024**2  # a longer line is cut: nothing the job prints may fill the server's memory


class LineSplitter:
    """Makes lines of chunks. The position counts lines from 0; blank lines are dropped and do not count, since their
    number differs between replays of one log (see above).
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._next_position = 0

    def feed(self, chunk: str) -> LogLines:
        """The lines that are complete with this chunk."""
        *ended, rest = chunk.split("\n")
        lines: LogLines = []
        for text in ended:
            self._add(text)
            lines.extend(self.rest())
        self._add(rest)
        return lines

    def rest(self) -> LogLines:
        """What came after the last line end, as a line: to be taken once nothing more can follow."""
        line = "".join(self._parts)
        self._parts, self._size = [], 0
        if not line.strip():
            return []
        self._next_position += 1
        return [(self._next_position - 1, line)]

    def _add(self, text: str) -> None:
        text = text[: MAX_LINE_CHARACTERS - self._size]
        if text:
            self._parts.append(text)
            self._size += len(text)


class JobLog:
    """One connection to a job's log, from its first line on. To be used in a `with` block, by one thread.

    Raises RayUnreachable or RayRefused on entering; RayUnreachable also where the cluster knows no such job.
    """

    def __init__(self, connection: RayConnection, submission_id: str, timeout: float = 10.0) -> None:
        self._connection = connection
        self._submission_id = submission_id
        self._timeout = timeout
        self._splitter = LineSplitter()
        self._open = ExitStack()
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        where = self._connection.dashboard_url
        try:
            opening = connect(
                f"{where.replace('http', 'ws', 1)}/api/jobs/{self._submission_id}/logs/tail",
                additional_headers=self._connection.headers,
                compression=None,
                ping_interval=None,
                open_timeout=self._timeout,
                close_timeout=1.0,
                max_size=None,  # Ray sends up to ten lines at once, however long; the splitter bounds what is kept
                proxy=True if uses_proxy(self._connection) else None,
            )
            self._socket = self._open.enter_context(opening)
        except InvalidStatus as error:
            if error.response.status_code in {401, 403}:
                raise refused_authentication(self._connection, error.response.status_code) from error
            raise RayUnreachable(f"The Ray cluster at {where} gives no log: {error}.") from error
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
            raise RayUnreachable(f"The Ray cluster at {where} gives no log: {error}.") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def batches(self) -> Iterator[LogLines]:
        """Complete lines as they come, and an empty batch every TICK_SECONDS without any. Ends with the stream."""
        if self._socket is None:
            raise RayRefused("A job's log is read within its `with` block.")
        while True:
            lines: LogLines = []
            try:
                lines = self._splitter.feed(self._received(TICK_SECONDS))
                while lines and len(lines) < MAX_BATCH_LINES:
                    lines.extend(self._splitter.feed(self._received(0.0)))
            except TimeoutError:
                yield lines
            except ConnectionClosed:
                if lines:
                    yield lines
                return
            else:
                yield lines

    def rest(self) -> LogLines:
        """A last line without an end. Only when the job is over: else the rest of it is still to come."""
        return self._splitter.rest()

    def _received(self, timeout: float) -> str:
        assert self._socket is not None
        data = self._socket.recv(timeout=timeout)
        return data if isinstance(data, str) else data.decode(errors="replace")
