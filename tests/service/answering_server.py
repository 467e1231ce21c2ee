"""A real HTTP server on a free port that answers as told, in place of a Ray dashboard in trouble."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class AnsweringServer:
    """`answers(method, path)` gives (status, body); None: no answer at all, until the server ends."""

    url: str
    seen: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def answering(answers: Callable[[str, str], tuple[int, object] | None]) -> Iterator[AnsweringServer]:
    ending = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            record.seen.append((self.command, self.path))
            record.headers.append(dict(self.headers))
            answer = answers(self.command, self.path)
            if answer is None:
                ending.wait(30)
                return
            status, body = answer
            text = body if isinstance(body, str) else json.dumps(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    record = AnsweringServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield record
    finally:
        ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
