"""Studies that come with VitScale, as YAML to read, to run and to start from."""

from importlib.resources import files

from service.errors import NotFound
from service.spelling import closest


def preset_names() -> list[str]:
    """All presets, by name."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files(__name__).iterdir() if entry.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """The preset as YAML, comments included.

    Raises:
        NotFound: there is none of this name; says which there are.
    """
    names = preset_names()
    if name not in names:
        matches = closest(name, names)
        hint = f"did you mean {matches[0]}?" if matches else f"there are {', '.join(names)}"
        raise NotFound(f"There is no preset {name[:100]}: {hint}")
    return files(__name__).joinpath(f"{name}.yaml").read_text("utf-8")
