"""The OpenAPI document: what the framework knows of the routes, the spec's schema, and the token."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.problems import MEDIA_TYPE, Problem

_DESCRIPTION = """\
VitScale measures how DeepSpeed training of Vision Transformers scales on a Ray cluster.

Post a specification to `/studies`, follow `/studies/{study_id}`, and take the rows from `/studies/{study_id}/results`.
Every call but the probes needs `Authorization: Bearer <token>` (`vitscale token` prints it). Errors are RFC 9457
`application/problem+json` with a stable `code`.
"""
_TAGS = [
    {"name": "studies", "description": "Sweeps: post, plan, follow, cancel, resume, retry"},
    {"name": "trials", "description": "The trials of a study, their attempts and logs"},
    {"name": "results", "description": "What was measured"},
    {"name": "presets", "description": "Ready-made specifications"},
    {"name": "cluster", "description": "Ray's nodes and devices"},
    {"name": "server", "description": "Probes and version"},
]
_REF = "#/components/schemas/{model}"


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`; made at the first call, then kept."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    from api.routes.studies import StudyPatch
    from service.spec import StudySpec  # large: loaded with the first question
    from service.study_comparison import StudyComparison

    document = get_openapi(
        title="VitScale", version=app.version, description=_DESCRIPTION, routes=app.routes, tags=_TAGS
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in (StudySpec, StudyPatch, StudyComparison, Problem):
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's own form of a 422, never sent here
        schemas.pop(name, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    for path in document["paths"].values():
        for operation in path.values():
            _replace_framework_problem(operation["responses"])
    return document


def _replace_framework_problem(responses: dict[str, Any]) -> None:
    """The framework adds its own 422 where a route has parameters; here it is answered as any other problem."""
    content = responses.get("422", {}).get("content", {})
    if "application/json" in content:
        del content["application/json"]
        content[MEDIA_TYPE] = {"schema": {"$ref": _REF.format(model="Problem")}}
        responses["422"]["description"] = "Unprocessable Content: REQUEST_INVALID"
