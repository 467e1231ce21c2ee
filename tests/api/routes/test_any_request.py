"""Whatever is sent, the answer is a documented one: no 500, and every refusal a problem."""

import json
import math
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from api.routes.studies import EXAMPLE_SPEC

pytestmark = pytest.mark.slow

_PATHS = [
    "/studies", "/studies/plan", "/studies/{}", "/studies/{}/trials", "/studies/{}/trials/{}",
    "/studies/{}/trials/{}/logs", "/studies/{}/results", "/studies/{}/logs", "/studies/{}/cancel", "/studies/{}/resume",
    "/studies/{}/retry", "/studies/{}/extend", "/studies/import",
    "/studies/{}/analysis", "/presets", "/presets/{}", "/cluster", "/version", "/healthz",
    "/readyz", "/openapi.json", "/{}",
]  # fmt: skip
_QUERY_KEYS = ["limit", "cursor", "status", "state", "name", "tag", "format", "map", "mode", "x"]
_MEDIA = [
    "application/json",
    "application/yaml",
    "text/csv",
    "text/plain",
    "",
    "application/json; charset=\x7f",
    "a;b;c=;",
]

words = st.text(max_size=12) | st.sampled_from(["aaaaaaaaaaaa", "1", "demo", "..", "%", "\x00", "9" * 30])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def bent_specs(draw: st.DrawFn) -> Any:
    """The documented example with one value, at any depth, replaced by anything."""
    spec = json.loads(json.dumps(EXAMPLE_SPEC))
    node = spec
    while True:
        key = draw(st.sampled_from(sorted(node))) if draw(st.integers(0, 9)) else draw(st.text(max_size=8))
        if not isinstance(node.get(key), dict) or draw(st.booleans()):
            node[key] = draw(values)
            return spec
        node = node[key]


bodies = st.binary(max_size=40) | (values | bent_specs()).map(lambda value: json.dumps(value).encode())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"]),
    path=st.sampled_from(_PATHS),
    parts=st.tuples(words, words),
    query=st.dictionaries(st.sampled_from(_QUERY_KEYS), words, max_size=2),
    media=st.sampled_from(_MEDIA),
    body=st.none() | bodies,
)
def test_any_request_has_a_documented_answer(
    client: TestClient,
    method: str,
    path: str,
    parts: tuple[str, str],
    query: dict[str, str],
    media: str,
    body: bytes | None,
) -> None:
    target = path.format(*[quote(part, safe="") for part in parts])
    encoded = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    headers = {"Content-Type": media.encode()} if body is not None else {}
    response = client.request(method, f"{target}?{encoded}", content=body, headers=headers)
    assert response.status_code not in {500, 502}, response.text
    if response.status_code >= 400 and method != "HEAD" and path != "/readyz":
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["code"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spec=bent_specs())
def test_plan_and_post_agree_on_any_spec(client: TestClient, spec: dict[str, Any]) -> None:
    """What plan finds nothing wrong with is taken, and what it refuses is refused."""
    planned = client.post("/studies/plan", content=json.dumps(spec), headers={"Content-Type": "application/json"})
    posted = client.post("/studies", content=json.dumps(spec), headers={"Content-Type": "application/json"})
    assert planned.status_code in {200, 400, 422}, planned.text
    if planned.status_code != 200:
        assert posted.status_code == planned.status_code
        assert posted.json() == planned.json()
        return
    plan = planned.json()
    assert math.isfinite(plan["device_seconds_bound"])
    is_good = not plan["refused"] and any(trial["state"] == "pending" for trial in plan["trials"])
    assert posted.status_code == (202 if is_good else 422), posted.text
