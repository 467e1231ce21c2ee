"""What a job carries to the cluster: plan.json and exactly the code that runs it."""

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import service
import trainers
from service.job_plan import JobPlan

PLAN_NAME = "plan.json"
ENTRYPOINT = f"exec python -m service.run_study {PLAN_NAME}"  # exec: signals reach the driver, not a shell before it
_ROOT_MODULE = "service.run_study"
_ZIP_TIME = (2026, 1, 1, 0, 0, 0)  # equal content gives an equal archive, whenever it is made


def package_files(plan: JobPlan) -> dict[str, bytes]:
    """The package's files by their path in it: the plan, the whole of `trainers`, and of `service` what the job driver
    imports, followed through its own imports. So neither store nor settings nor anything beside the code travels.
    """
    files = {PLAN_NAME: plan.model_dump_json().encode()}
    trainers_dir = Path(trainers.__file__ or "").parent
    for path in sorted(trainers_dir.rglob("*.py")):
        files[f"trainers/{path.relative_to(trainers_dir).as_posix()}"] = path.read_bytes()
    for path in sorted(_imported_service_files()):
        files[f"service/{path.relative_to(_service_dir()).as_posix()}"] = path.read_bytes()
    return files


def zip_package(files: dict[str, bytes]) -> tuple[str, bytes]:
    """The package's name on the cluster (from its content) and its zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    content = buffer.getvalue()
    return f"_ray_pkg_{hashlib.sha256(content).hexdigest()[:40]}.zip", content


def _service_dir() -> Path:
    return Path(service.__file__ or "").parent


def _imported_service_files() -> set[Path]:
    """Files of `service` that `service.run_study` imports, directly or not, packages' __init__ included."""
    found: set[Path] = set()
    waiting = [_ROOT_MODULE]
    while waiting:
        name = waiting.pop()
        for path in _files_of(name):
            if path not in found:
                found.add(path)
                waiting.extend(_service_imports(path))
    return found


def _files_of(module: str) -> Iterator[Path]:
    """The module's file and the __init__ of each package above it; a last part that is no module is passed over."""
    parts = module.split(".")[1:]
    directory = _service_dir()
    yield directory / "__init__.py"
    for part in parts:
        package, file = directory / part / "__init__.py", directory / f"{part}.py"
        if package.is_file():
            yield package
            directory = directory / part
        elif file.is_file():
            yield file
            return
        else:
            return


def _service_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "service")
