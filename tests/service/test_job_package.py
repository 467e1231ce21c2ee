"""What travels to the cluster with a job, and nothing else."""

import ast
from pathlib import Path

import service
from service.job_package import package_files, zip_package
from service.job_plan import JobPlan

PLAN = JobPlan(study="abcdefghijkl", attempt=2, trials=[])
REPOSITORY = Path(service.__file__ or "").parents[1]


def imports_of(path: Path) -> set[str]:
    """Modules of `service` named in import statements of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("service"):
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "service"}
    return found


def test_the_package_is_the_plan_the_trainers_and_what_the_driver_imports() -> None:
    trainers = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "trainers").rglob("*.py")}
    expected_service = {
        "service/__init__.py",
        "service/admission.py",
        "service/event_writer.py",
        "service/events.py",
        "service/failure.py",
        "service/feasibility.py",
        "service/job_plan.py",
        "service/reruns.py",
        "service/run_study.py",
        "service/states.py",
        "service/study_record.py",
        "service/trial_attempt.py",
        "service/worker_processes.py",
    }
    assert set(package_files(PLAN)) == {"plan.json"} | trainers | expected_service


def test_no_measured_data_travels() -> None:
    names = set(package_files(PLAN))
    assert (REPOSITORY / "service/reference/paper/vector-intra-node-cifar10-strong.csv").is_file()
    assert not [name for name in names if name.endswith(".csv") or "reference" in name or "measured_rows" in name]


def test_every_import_within_the_package_is_in_the_package() -> None:
    names = set(package_files(PLAN))
    for name in names:
        if name.startswith("service/"):
            for module in imports_of(REPOSITORY / name):
                path = module.replace(".", "/")
                assert {f"{path}.py", f"{path}/__init__.py"} & names, f"{name} imports {module}"


def test_the_plan_in_it_is_the_plan() -> None:
    assert JobPlan.model_validate_json(package_files(PLAN)["plan.json"]) == PLAN


def test_equal_content_gives_an_equal_archive_and_name() -> None:
    files = package_files(PLAN)
    assert zip_package(files) == zip_package(dict(reversed(files.items())))
    assert zip_package(files)[0] != zip_package({**files, "plan.json": b"{}"})[0]
