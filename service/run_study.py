"""The job: `python -m service.run_study plan.json` runs a study's trials on the Ray cluster that RAY_ADDRESS names.

One Tune trial for each planned trial; a Tune trial is a driver function that leads one TorchTrainer at a time. Events
go to standard output (service.events). Exit code 0: it came to its end in order, whatever became of the trials.
"""

import os

# Read by Ray when it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # each line of a worker belongs to its own trial
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no files for each trial
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "3600")  # what is finished, events tell; nothing is restored

import contextlib
import itertools
import logging
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from pydantic import ValidationError
from ray import tune
from ray.exceptions import RayError
from ray.tune.experiment import Trial
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.admission import Admission
from service.event_writer import EventWriter
from service.failure import failure_of
from service.feasibility import Demand, Node, resolved_num_gpus
from service.job_plan import JobPlan, PlannedTrial
from service.reruns import Reruns
from service.study_record import MESSAGE_KEY, StudyRecord, WorkerProcess, message
from service.trial_attempt import CLEAN_UP_SECONDS, EXIT_GRACE_SECONDS, TrialAttempt
from service.worker_processes import see_off
from trainers.raised_error import describe

TUNE_END_SECONDS = 4.0  # for Tune's own end after a study that was stopped early
CANCEL_SECONDS = 10.0  # for each of the two things that are waited for; a job has 20 s from SIGTERM
LEADER_SLACK_SECONDS = 4 * CLEAN_UP_SECONDS  # ending, removing, seeing off, and what Ray itself takes
HEAD_RESOURCE = "node:__internal_head__"  # every cluster's head node has one of it


# ---- Ray, as the rest of service/ sees it ----


class RayCluster:
    """The cluster this process is connected to (service.trial_attempt.Cluster)."""

    def live_nodes(self) -> list[Node]:
        """The nodes that are alive, with all they have."""
        return [
            Node(
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                num_cpus=node["Resources"].get("CPU", 0.0),
                num_gpus=node["Resources"].get("GPU", 0.0),
                labels=node.get("Labels") or {},
            )
            for node in ray.nodes()
            if node["Alive"]
        ]

    def remove_groups(self, prefix: str, timeout_seconds: float) -> list[str]:
        """Removes the placement groups whose name begins so, with what runs in them, and waits until they are gone."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = {
                group_id: group["name"]
                for group_id, group in placement_group_table().items()
                if group["name"].startswith(prefix) and group["state"] != "REMOVED"
            }
            for group_id in left:
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id))))
            if not left or time.monotonic() >= deadline:
                return [f"placement group {name}" for name in left.values()]
            time.sleep(0.02)

    def see_off(self, processes: Sequence[WorkerProcess], grace_seconds: float, timeout_seconds: float) -> list[str]:
        """Waits for worker processes wherever they are, and kills those that stay."""
        here = ray.get_runtime_context().get_node_id()
        alive = {node.node_id for node in self.live_nodes()}  # what was on a dead node is gone, or out of reach
        by_node: dict[str, list[int]] = {}
        for process in processes:
            by_node.setdefault(process.node_id, []).append(process.pid)
        elsewhere = {
            ray.remote(num_cpus=0, max_retries=0)(see_off)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
            .remote(pids, grace_seconds=grace_seconds, timeout_seconds=timeout_seconds): node_id
            for node_id, pids in by_node.items()
            if node_id != here and node_id in alive
        }
        stayed = see_off(by_node.get(here, []), grace_seconds=grace_seconds, timeout_seconds=timeout_seconds)
        left = [f"process {pid}" for pid in stayed]
        if elsewhere:
            done, late = ray.wait(list(elsewhere), num_returns=len(elsewhere), timeout=timeout_seconds)
            left += [f"no word from node {elsewhere[answer]}" for answer in late]
            for answer in done:
                with contextlib.suppress(RayError):  # the node died meanwhile
                    left += [f"process {pid} on node {elsewhere[answer]}" for pid in ray.get(answer)]
        return left


# ---- in a trial's own driver process ----


def lead_trial(config: dict[str, Any]) -> None:
    """Tune's trainable: leads one planned trial through its attempts and tells the job driver what happens."""
    import trainers.ray_worker  # noqa: F401 - loads torch once for all trials of this process: not the trial's time

    planned = PlannedTrial.model_validate_json(config["trial"]["planned"])
    job = JobPlan.model_validate_json(config["job"])
    serial = 0

    def report(kind: str, *, processes: list[WorkerProcess] | None = None, **fields: Any) -> None:
        nonlocal serial
        serial += 1
        tune.report({MESSAGE_KEY: message(kind, serial, processes=processes, **fields)})

    this_process = WorkerProcess(ray.get_runtime_context().get_node_id(), os.getpid())
    reruns = Reruns.of(planned, job.execution)
    for run in itertools.count(1):
        report("started", processes=[this_process])
        group_name = f"{group_prefix(job)}{planned.number}-{run}"
        outcome = TrialAttempt(planned, job, group_name, RayCluster(), report, _scratch_folder(job)).run()
        failure = outcome.failure
        will_retry = reruns.take_one(outcome)
        report(
            "finished",
            state="failed" if failure else "succeeded",
            reason=failure.reason if failure else None,
            error=failure.cause.model_dump() if failure else None,
            result=outcome.result.model_dump(mode="json") if outcome.result else None,
            will_retry=will_retry,
            queue_seconds=outcome.queue_seconds,
            total_seconds=outcome.total_seconds,
        )
        if not will_retry:
            return


def group_prefix(job: JobPlan) -> str:
    """What the names of this job's placement groups begin with."""
    return f"vitscale-{job.study}-{job.attempt}-"


# ---- in the job driver ----


class _StaysHere:
    """Not copied: Tune pickles what it is given, for a restore that never comes; the live object must stay the one."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_StaysHere":
        return self


class _InOrder(BasicVariantGenerator):  # type: ignore[misc]
    """Hands the planned trials to Tune in their order, each when it is admitted."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(max_concurrent=admission.max_concurrent)
        self._admission = admission
        self._next_position = 0
        self._positions: dict[str, int] = {}

    def next_trial(self) -> Trial | None:
        if not self._admission.may_start(self._next_position):
            return None
        trial = super().next_trial()
        if trial is not None:
            self._positions[trial.trial_id] = self._next_position
            self._admission.started(self._next_position)
            self._next_position += 1
        return trial

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        super().on_trial_complete(trial_id, result, error)
        if trial_id in self._positions:
            self._admission.ended(self._positions.pop(trial_id))


class _Messages(_StaysHere, tune.Callback):  # type: ignore[misc]
    """Passes what driver functions say on to the record, and notices those that die."""

    def __init__(self, record: StudyRecord, clean_up: Callable[[int], None]) -> None:
        self._record = record
        self._clean_up = clean_up
        self.running: dict[str, Trial] = {}

    def on_trial_start(self, *, trial: Trial, **_: Any) -> None:
        self.running[trial.trial_id] = trial

    def on_trial_result(self, *, trial: Trial, result: dict[str, Any], **_: Any) -> None:
        self._record.take(trial.config["trial"]["number"], result[MESSAGE_KEY])

    def on_trial_complete(self, *, trial: Trial, **_: Any) -> None:
        self.running.pop(trial.trial_id, None)

    def on_trial_recover(self, *, trial: Trial, **_: Any) -> None:
        self._lost(trial, will_retry=True)

    def on_trial_error(self, *, trial: Trial, **_: Any) -> None:
        self._lost(trial, will_retry=False)

    def _lost(self, trial: Trial, *, will_retry: bool) -> None:
        self.running.pop(trial.trial_id, None)
        number = trial.config["trial"]["number"]
        self._clean_up(number)
        failure = failure_of([describe(_error_of(trial))])
        self._record.driver_function_lost(number, failure.reason, failure.cause, will_retry=will_retry)


def _error_of(trial: Trial) -> BaseException:
    """What Tune has noted down about a trial that failed as such."""
    file = trial.pickled_error_file
    if file is None or not Path(file).is_file():
        return RuntimeError("the trial's driver function died without a word")
    error: BaseException = pickle.loads(Path(file).read_bytes())
    return error


class _StopWhen(_StaysHere, tune.Stopper):  # type: ignore[misc]
    """Ends the study early; what has not started then stays pending."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        return False

    def stop_all(self) -> bool:
        return self._condition()


class StudyRun:
    """One run of a job plan on the cluster that this process is connected to."""

    def __init__(self, plan: JobPlan, stop_asked: threading.Event) -> None:
        self._cluster = RayCluster()
        self._stop_asked = stop_asked
        self._nodes = self._cluster.live_nodes()
        num_gpus = resolved_num_gpus(plan.resources.num_gpus, self._nodes)
        self._job = plan.model_copy(update={"resources": plan.resources.model_copy(update={"num_gpus": num_gpus})})
        self._num_gpus = num_gpus
        self._writer = EventWriter(plan.study, plan.attempt)
        self._record = StudyRecord(self._job, self._writer)
        self._messages = _Messages(self._record, self._clean_up_trial)
        self._folder = _scratch_folder(plan)
        self._error: Exception | None = None

    def run(self) -> None:
        """Runs every trial, or stops early when asked to, and writes the last event."""
        self._writer.study_started(
            num_trials=len(self._job.trials), num_gpus_per_worker=self._num_gpus, nodes=self._node_facts()
        )
        over = threading.Event()
        thread = threading.Thread(target=self._tune, args=(over,), name="tune", daemon=True)
        thread.start()
        while not over.wait(0.1) and not self._stops_early():
            self._end_overdue_leaders()
        cancelled = self._stop_asked.is_set()
        self._end_what_runs()
        over.wait(TUNE_END_SECONDS)  # Tune writes its state once more when it ends, and would make the folder anew
        shutil.rmtree(self._folder, ignore_errors=True)
        error = f"{type(self._error).__name__}: {self._error}" if self._error else None
        if self._record.too_many_failed and not cancelled:
            error = f"stopped: more than max_failed_trials = {self._job.execution.max_failed_trials} trials failed"
        self._writer.study_finished(cancelled=cancelled, error=error)

    def _stops_early(self) -> bool:
        return self._stop_asked.is_set() or self._record.too_many_failed

    def _end_overdue_leaders(self) -> None:
        """A driver function keeps all bounds by itself; one that is stopped or hangs is ended after all of them."""
        execution = self._job.execution
        bound = execution.queue_timeout_seconds + execution.trial_timeout_seconds + LEADER_SLACK_SECONDS
        for attempt in self._record.overdue(bound):
            self._cluster.see_off(attempt.leader, grace_seconds=0, timeout_seconds=CLEAN_UP_SECONDS)

    def _node_facts(self) -> list[dict[str, Any]]:
        return [
            {
                "node_id": node.node_id,
                "ip": node.address,
                "resources": {"CPU": node.num_cpus, "GPU": node.num_gpus},
                "labels": dict(node.labels),
            }
            for node in self._nodes
        ]

    def _tune(self, over: threading.Event) -> None:
        try:
            self._fit()
        except Exception as error:  # noqa: BLE001 - told as the study's error by the thread that waits
            self._error = error
        finally:
            over.set()

    def _fit(self) -> None:
        demands = [
            Demand.of(trial.config.world_size, self._job.resources, self._num_gpus, trial.placement)
            for trial in self._job.trials
        ]
        execution = self._job.execution
        admission = Admission(
            demands,
            self._nodes,
            exclusive=execution.isolation == "exclusive",
            max_concurrent=execution.max_concurrent_trials,
        )
        shared_part = self._job.model_copy(update={"trials": []}).model_dump_json()
        configs = [{"number": trial.number, "planned": trial.model_dump_json()} for trial in self._job.trials]
        tune.Tuner(
            tune.with_resources(lead_trial, self._driver_function_resources()),
            param_space={"job": shared_part, "trial": tune.grid_search(configs)},
            tune_config=tune.TuneConfig(
                search_alg=_InOrder(admission),
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name="study",
                storage_path=str(self._folder),
                verbose=0,
                callbacks=[self._messages],
                stop=_StopWhen(self._stops_early),
                failure_config=tune.FailureConfig(max_failures=execution.retries),
            ),
        ).fit()

    def _driver_function_resources(self) -> dict[str, float]:
        """A small share of the head node: of its CPUs even 0.01 would leave no room for workers on all of them."""
        if HEAD_RESOURCE in ray.cluster_resources():
            return {"CPU": 0, HEAD_RESOURCE: 0.0001}
        return {"CPU": 0.01}

    def _clean_up_trial(self, number: int) -> None:
        attempt = self._record.open_attempt(number)
        self._cluster.remove_groups(f"{group_prefix(self._job)}{number}-", CLEAN_UP_SECONDS)
        if attempt is not None:
            self._cluster.see_off(attempt.processes, EXIT_GRACE_SECONDS, CLEAN_UP_SECONDS)

    def _end_what_runs(self) -> None:
        """Ends driver functions and workers that are still there, and says so. Nothing is left when all went well."""
        attempts = self._record.close()
        for trial in list(self._messages.running.values()):
            actor = trial.temporary_state.ray_actor
            if actor is not None:
                ray.kill(actor)
        self._cluster.remove_groups(group_prefix(self._job), CANCEL_SECONDS)
        processes = [process for attempt in attempts for process in (*attempt.leader, *attempt.processes)]
        self._cluster.see_off(processes, grace_seconds=0.5, timeout_seconds=CANCEL_SECONDS)
        for attempt in attempts:
            self._record.cancel(attempt)


def _trial_name(trial: Trial) -> str:
    return f"trial-{trial.config['trial']['number']}"


def _scratch_folder(job: JobPlan) -> Path:
    """For the few files that Tune and Train insist on; the job driver removes it.

    In Ray's session folder where that can be written to: then it goes with it, should the driver be killed.
    """
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    parent = session if os.access(session, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / group_prefix(job).rstrip("-")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def connect(address: str | None) -> None:
    """Connects to the Ray that is already there.

    Raises:
        ConnectionError: none is named, or it does not answer.
    """
    if not address:
        raise ConnectionError("RAY_ADDRESS is not set: name the Ray cluster to run on; none is started here")
    ray.init(address=address, log_to_driver=True, configure_logging=True, logging_level=logging.WARNING)
    for chatty in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(chatty).setLevel(logging.ERROR)  # events tell what there is to tell


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 came to its end in order, 1 no Ray, 2 no such plan or not a valid one."""
    if len(arguments) != 1:
        print("usage: python -m service.run_study PLAN.JSON", file=sys.stderr)
        return 2
    try:
        plan = JobPlan.model_validate_json(Path(arguments[0]).read_bytes())
    except (OSError, ValidationError) as error:
        print(f"run_study: cannot read the plan {arguments[0]}: {error}", file=sys.stderr)
        return 2
    stop_asked = threading.Event()
    try:
        connect(os.environ.get("RAY_ADDRESS"))
    except (ConnectionError, RayError) as error:
        print(f"run_study: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):  # after ray.init, which sets its own
        signal.signal(number, lambda *_: stop_asked.set())
    StudyRun(plan, stop_asked).run()
    return 0


def _leave(code: int) -> None:
    """Ends the process at once: Tune's thread may still wait for actors that are no more."""
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    ending.join(timeout=5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # What is pickled by reference must be found under its own name, not as __main__.
    from service import run_study

    run_study._leave(run_study.main(sys.argv[1:]))
