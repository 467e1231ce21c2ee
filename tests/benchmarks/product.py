"""VitScale as the benchmarks run it: the whole service without its HTTP front, on a Ray head of its own."""

import time
from pathlib import Path
from typing import Any

from service.dispatch import Dispatcher
from service.ray_head import LocalHead
from service.settings import Settings
from service.store.database import Database
from service.studies import Studies
from service.views import StudyView

STUDY_SECONDS = 1800


class Product:
    """The service without its HTTP front, on a Ray head of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._database = Database(f"sqlite:///{data_dir / 'vitscale.db'}")
        self._head = LocalHead(data_dir)
        self._dispatcher = Dispatcher(self._database, Settings(data_dir=data_dir), self._head)
        self.studies = Studies(self._database, data_roots=(), wake=self._dispatcher.wake)

    def __enter__(self) -> "Product":
        self._database.upgrade()
        self._head.start()
        self._dispatcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._dispatcher.stop(10)
        self._head.stop()
        self._database.close()

    def run(self, spec: dict[str, Any]) -> StudyView:
        """Runs a study to its end and gives it back."""
        study, _ = self.studies.create(spec)
        deadline = time.monotonic() + STUDY_SECONDS
        while not (study := self.studies.get(study.id)).status.is_final:
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {STUDY_SECONDS} s for a study of the benchmark")
            time.sleep(1.0)  # looking costs time on the cores that are measured
        return study
