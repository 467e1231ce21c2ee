"""A stand-in for the job driver, for tests of what happens around it: prints a study's events as told, trains nothing.

`package(script)` is handed to the dispatcher. The script says, by attempt of the study and number of the trial, what
becomes of a trial: "succeed" (what is not named), "die" (the driver kills itself in mid-trial), "hang" (until SIGTERM),
"deaf" (hangs and does not heed SIGTERM), "exit" (leaves with code 3, in order but for the last event).
"""

import json
from collections.abc import Callable
from pathlib import Path

from service.job_package import package_files
from service.job_plan import JobPlan
from tests.service.factories import trial_result

Script = dict[int, dict[int, str]]  # attempt of the study -> trial -> what becomes of it


def package(script: Script, trial_seconds: float = 0.1) -> Callable[[JobPlan], dict[str, bytes]]:
    def files(plan: JobPlan) -> dict[str, bytes]:
        return package_files(plan) | {
            "service/run_study.py": Path(__file__).with_name("scripted_driver.py").read_bytes(),
            "script.json": json.dumps({"trial_seconds": trial_seconds, "fates": script}).encode(),
            "result.json": trial_result().model_dump_json().encode(),
        }

    return files
