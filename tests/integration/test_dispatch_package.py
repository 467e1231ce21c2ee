"""A job's package is enough to start its driver (no Ray is started; importing it takes seconds)."""

import os
import subprocess
import sys
from pathlib import Path

from service.job_package import ENTRYPOINT, package_files
from service.job_plan import JobPlan


def test_the_driver_starts_from_the_package_alone(tmp_path: Path) -> None:
    for name, content in package_files(JobPlan(study="abcdefghijkl", attempt=1, trials=[])).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    code = "import service.run_study; print(service.run_study.__file__)"
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "service" / "run_study.py"
    assert ENTRYPOINT == "exec python -m service.run_study plan.json"
