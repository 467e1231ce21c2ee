"""Presets: ready-made specifications."""

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.responses import Response

from api.problems import documented
from api.routes.parameters import known_query_only
from service import presets
from service.errors import NotFound

router = APIRouter(prefix="/presets", tags=["presets"], dependencies=[Depends(known_query_only)])


class Preset(BaseModel):
    name: str
    description: str | None


class Presets(BaseModel):
    presets: list[Preset]


@router.get("", operation_id="listPresets", summary="The presets' names", responses=documented())
def list_presets() -> Presets:
    return Presets(presets=[Preset(name=name, description=_description(name)) for name in presets.preset_names()])


@router.get(
    "/{name}",
    operation_id="getPreset",
    summary="One preset, as YAML that can be posted as it is",
    response_class=Response,
    responses={200: {"content": {"application/yaml": {"schema": {"type": "string"}}}}, **documented(NotFound)},
)
def get_preset(name: str) -> Response:
    return Response(presets.preset_text(name), media_type="application/yaml")


def _description(name: str) -> str | None:
    from service.spec import load_spec_text

    spec = load_spec_text(presets.preset_text(name), "yaml")
    description = spec.get("description") if isinstance(spec, dict) else None
    return str(description) if description is not None else None
