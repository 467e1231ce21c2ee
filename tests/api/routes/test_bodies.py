"""Bodies: type, size, encoding, and the time they take."""

import asyncio
import gzip
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

import api.bodies
from api.bodies import DRAINED_BYTES, MAX_BODY_BYTES, read_body
from api.problems import BodyTooLarge, RequestTimeout
from service.errors import BadRequest
from tests.api.routes.answers import assert_problem

JSON = {"Content-Type": "application/json"}
SPEC = (
    b'{"name": "small", "parameters": {"model": {"value": "vit_tiny_patch16_224"},'
    b' "train_micro_batch_size_per_gpu": {"value": 4}}}'
)


def padded(num_bytes: int) -> bytes:
    return SPEC + b" " * (num_bytes - len(SPEC))


def in_chunks(content: bytes) -> Iterator[bytes]:
    """Sent chunked, without a Content-Length."""
    for start in range(0, len(content), 65_536):
        yield content[start : start + 65_536]


class TestSize:
    def test_a_body_of_1_mb_is_read(self, client: TestClient) -> None:
        assert client.post("/studies/plan", content=padded(MAX_BODY_BYTES), headers=JSON).status_code == 200

    def test_one_byte_more_is_413(self, client: TestClient) -> None:
        response = client.post("/studies/plan", content=padded(MAX_BODY_BYTES + 1), headers=JSON)
        assert_problem(response, 413, "BODY_TOO_LARGE")

    @pytest.mark.parametrize(("num_bytes", "status"), [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413)])
    def test_a_chunked_body_is_counted(self, client: TestClient, num_bytes: int, status: int) -> None:
        response = client.post("/studies/plan", content=in_chunks(padded(num_bytes)), headers=JSON)
        assert response.status_code == status

    def test_a_body_without_end_is_left(self) -> None:
        sent = 0

        async def endless() -> dict[str, object]:
            nonlocal sent
            sent += 65_536
            return {"type": "http.request", "body": b" " * 65_536, "more_body": True}

        with pytest.raises(BodyTooLarge):
            asyncio.run(read_body(_request(endless)))
        assert sent < DRAINED_BYTES + 2 * 65_536

    def test_a_declared_size_far_beyond_is_refused_unread(self) -> None:
        async def unread() -> dict[str, object]:
            raise AssertionError("the body was read")

        with pytest.raises(BodyTooLarge):
            asyncio.run(read_body(_request(unread, (b"content-length", b"99999999999999"))))

    def test_patch_is_bound_by_it_too(self, client: TestClient, study: str) -> None:
        response = client.patch(f"/studies/{study}", content=b" " * (MAX_BODY_BYTES + 1), headers=JSON)
        assert_problem(response, 413, "BODY_TOO_LARGE")


class TestTime:
    def test_a_body_that_does_not_come_is_408(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api.bodies, "BODY_SECONDS", 0.05)

        async def silent() -> dict[str, object]:
            return await asyncio.get_running_loop().create_future()

        with pytest.raises(RequestTimeout):
            asyncio.run(read_body(_request(silent)))

    def test_a_caller_who_hangs_up_is_no_error_of_ours(self) -> None:
        async def gone() -> dict[str, object]:
            return {"type": "http.disconnect"}

        with pytest.raises(BadRequest):
            asyncio.run(read_body(_request(gone)))


class TestType:
    @pytest.mark.parametrize(
        "kind",
        ["application/json", "Application/JSON; charset=UTF-8", "application/yaml", "text/yaml", "application/x-yaml"],
    )
    def test_json_and_yaml_are_read(self, client: TestClient, kind: str) -> None:
        assert client.post("/studies/plan", content=SPEC, headers={"Content-Type": kind}).status_code == 200

    @pytest.mark.parametrize(
        "kind",
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/csv", "", "json",
         "application/json; charset=latin-1", "application/problem+json", "*/*"],
    )  # fmt: skip
    def test_what_a_form_could_send_is_415(self, client: TestClient, kind: str) -> None:
        response = client.post("/studies", content=SPEC, headers={"Content-Type": kind})
        assert_problem(response, 415, "UNSUPPORTED_MEDIA_TYPE")
        assert response.headers["accept"] == "application/json, application/yaml"

    def test_no_type_is_415(self, client: TestClient) -> None:
        assert_problem(client.post("/studies", content=SPEC), 415, "UNSUPPORTED_MEDIA_TYPE")

    def test_a_compressed_body_is_415(self, client: TestClient) -> None:
        response = client.post("/studies", content=gzip.compress(SPEC), headers={**JSON, "Content-Encoding": "gzip"})
        assert_problem(response, 415, "UNSUPPORTED_MEDIA_TYPE")

    @pytest.mark.parametrize("content", [b"", b"  \n "])
    def test_an_empty_body_is_400(self, client: TestClient, content: bytes) -> None:
        assert_problem(client.post("/studies", content=content, headers=JSON), 400, "BAD_REQUEST")

    def test_bytes_that_are_no_utf_8_are_400_with_their_place(self, client: TestClient) -> None:
        problem = assert_problem(client.post("/studies", content=b'{"name": "\xff"}', headers=JSON), 400, "BAD_REQUEST")
        assert "byte 10" in problem["detail"]

    def test_a_byte_order_mark_is_no_error(self, client: TestClient) -> None:
        assert client.post("/studies/plan", content=b"\xef\xbb\xbf" + SPEC, headers=JSON).status_code == 200


def _request(receive: object, *headers: tuple[bytes, bytes]) -> Request:
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"",
             "headers": [(b"content-type", b"application/json"), *headers]}  # fmt: skip
    return Request(scope, receive)  # type: ignore[arg-type]
