"""Reading a request's body: JSON or YAML by its Content-Type, or CSV, with a bound on its size and on its time.

The text is not parsed here: that is work for a thread, not for the event loop.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from api.limits import MAX_BODY_BYTES, MAX_CSV_BYTES
from api.problems import BodyTooLarge, NotCsv, RequestTimeout, UnsupportedMediaType
from service.errors import BadRequest

BODY_SECONDS = 30.0  # to arrive in
# Past the limit this much is read and dropped, so that an ordinary client, which sends all before it reads, sees the
# answer and not a reset connection.
DRAINED_BYTES = 16 * MAX_BODY_BYTES

_MEDIA: dict[str, Literal["json", "yaml"]] = {
    "application/json": "json",
    "application/yaml": "yaml",  # RFC 9512
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/x-yaml": "yaml",
}


@dataclass(frozen=True)
class Body:
    text: str
    media: Literal["json", "yaml"]
    digest: str  # of the bytes as sent; two requests with one Idempotency-Key are compared by it

    def parsed(self) -> object:
        """The data in the text. Call it in a thread. Raises BadRequest with line and column."""
        from service.spec import load_spec_text  # large: loaded when the server starts, not when it is imported

        return load_spec_text(self.text, self.media)


async def read_body(request: Request) -> Body:
    """The body of `request`.

    Raises:
        UnsupportedMediaType: no Content-Type, or neither JSON nor YAML in UTF-8, or compressed.
        BodyTooLarge: over `MAX_BODY_BYTES`, declared or counted.
        RequestTimeout: not all there within `BODY_SECONDS`.
        BadRequest: empty, or not UTF-8.
    """
    kind = _kind(request.headers, UnsupportedMediaType, "send application/json or application/yaml")
    media = _MEDIA.get(kind)
    if media is None:
        raise UnsupportedMediaType(f"Content-Type {kind!r} is not read here: send application/json or application/yaml")
    content = await _content(request, MAX_BODY_BYTES)
    text = _text(content)
    if not text.strip():
        raise BadRequest("The body is empty: JSON or YAML belongs there")
    return Body(text=text, media=media, digest=hashlib.sha256(media.encode() + b"\n" + content).hexdigest())


RequestBody = Annotated[Body, Depends(read_body)]


async def read_csv_text(request: Request) -> str:
    """The body of `request`, which must be CSV.

    Raises:
        NotCsv: no Content-Type, or another than text/csv in UTF-8, or compressed.
        BodyTooLarge: over `MAX_CSV_BYTES`, declared or counted.
        RequestTimeout, BadRequest: as `read_body`.
    """
    kind = _kind(request.headers, NotCsv, "send text/csv")
    if kind != "text/csv":
        raise NotCsv(f"Content-Type {kind!r} is not read here: send text/csv")
    return _text(await _content(request, MAX_CSV_BYTES))


CsvText = Annotated[str, Depends(read_csv_text)]


def _kind(headers: Headers, refusal: type[UnsupportedMediaType], wanted: str) -> str:
    """The media type in lower case. Raises `refusal` where there is none, or it is neither UTF-8 nor uncompressed."""
    given = headers.get("content-type")
    if given is None:
        raise refusal(f"The body has no Content-Type: {wanted}")
    kind, _, parameters = given.partition(";")
    charset = parameters.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in {"", "utf-8", "utf8"}:
        raise refusal(f"The body's charset is {charset!r}: send UTF-8")
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise refusal(f"The body's Content-Encoding is {coding!r}: send it uncompressed")
    return kind.strip().lower()


async def _content(request: Request, max_bytes: int) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_limited(request, max_bytes)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise BadRequest("The connection was closed before the whole body had arrived") from None


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: {error.reason} at byte {error.start}") from None


async def _read_limited(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > DRAINED_BYTES:
        raise BodyTooLarge(f"The body has {declared} bytes; at most {max_bytes} are read")
    chunks: list[bytes] = []
    num_bytes = 0
    async for chunk in request.stream():  # counted as it comes: a chunked body declares no length
        num_bytes += len(chunk)
        if num_bytes <= max_bytes:
            chunks.append(chunk)
        elif num_bytes > DRAINED_BYTES:
            break
    if num_bytes > max_bytes:
        raise BodyTooLarge(f"The body has {num_bytes} bytes or more; at most {max_bytes} are read")
    return b"".join(chunks)
