"""The driver of `scripted_job`: it takes the place of service/run_study.py in a job's package."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from service.events import StudyFinished, StudyStarted, TrialFinished, TrialStarted, format_event
from service.job_plan import JobPlan
from trainers.result import TrialResult

FOREVER = 3600.0


class Driver:
    def __init__(self) -> None:
        self.plan = JobPlan.model_validate_json(Path(sys.argv[1]).read_text())
        self.script = json.loads(Path("script.json").read_text())
        self.result = TrialResult.model_validate_json(Path("result.json").read_text())
        self.seq = 0
        self.running: dict[str, int] | None = None
        self.deaf = False
        signal.signal(signal.SIGTERM, self.stop)

    def say(self, event_type: Any, **fields: Any) -> None:
        self.seq += 1
        event = event_type(seq=self.seq, study=self.plan.study, attempt=self.plan.attempt, **fields)
        os.write(1, f"\n{format_event(event)}\n".encode())

    def stop(self, *_: object) -> None:
        if self.deaf:
            return
        if self.running is not None:
            self.say(TrialFinished, **self.running, state="cancelled")
        self.say(StudyFinished, cancelled=True)
        sys.exit(0)

    def run(self) -> int:
        self.say(StudyStarted, num_trials=len(self.plan.trials), num_gpus_per_worker=0)
        fates = self.script["fates"].get(str(self.plan.attempt), {})
        for trial in self.plan.trials:
            self.running = {"trial": trial.number, "trial_attempt": trial.attempt}
            self.say(TrialStarted, **self.running)
            print(f"trial {trial.number} runs", flush=True)
            match fates.get(str(trial.number), "succeed"):
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "exit":
                    return 3
                case "hang" | "deaf" as fate:
                    self.deaf = fate == "deaf"
                    deadline = time.monotonic() + FOREVER
                    while time.monotonic() < deadline:
                        time.sleep(0.2)
            time.sleep(self.script["trial_seconds"])
            self.say(TrialFinished, **self.running, state="succeeded", result=self.result)
            self.running = None
        self.say(StudyFinished)
        return 0


if __name__ == "__main__":
    sys.exit(Driver().run())
