"""Which trials may run at once. They start in the plan's order, so the next one is never overtaken. Pure."""

from collections.abc import Sequence

from service.feasibility import Demand, Node


class Admission:
    """Lets the next trial in when what runs leaves room for it in the cluster as a whole.

    exclusive: one at a time. shared: as many as fit, at most `max_concurrent`. A trial that fits the cluster's totals
    but no single node at the moment waits in Ray's own queue, where its queue timeout counts.
    """

    def __init__(
        self, demands: Sequence[Demand], nodes: Sequence[Node], *, exclusive: bool, max_concurrent: int | None
    ) -> None:
        self._demands = demands
        self._num_cpus = sum(node.num_cpus for node in nodes)
        self._num_gpus = sum(node.num_gpus for node in nodes)
        self._exclusive = exclusive
        self._max_concurrent = max_concurrent
        self._running: set[int] = set()

    def may_start(self, position: int) -> bool:
        """Whether the trial at this position of the order may start now. With nothing running, any may.

        Past the last position there is nothing to hold back.
        """
        if not self._running or position >= len(self._demands):
            return True
        if self._exclusive or (self._max_concurrent is not None and len(self._running) >= self._max_concurrent):
            return False
        wanted = [self._demands[p] for p in (*self._running, position)]
        return (
            sum(d.num_cpus * d.world_size for d in wanted) <= self._num_cpus
            and sum(d.num_gpus * d.world_size for d in wanted) <= self._num_gpus
        )

    @property
    def max_concurrent(self) -> int:
        """An upper bound of how many run at once, at least 1."""
        if self._exclusive or not self._demands:
            return 1
        smallest_cpus = min(d.num_cpus * d.world_size for d in self._demands)
        bounds = [int(self._num_cpus // smallest_cpus)]
        smallest_gpus = min(d.num_gpus * d.world_size for d in self._demands)
        if smallest_gpus:
            bounds.append(int(self._num_gpus // smallest_gpus))
        if self._max_concurrent is not None:
            bounds.append(self._max_concurrent)
        return max(1, min(bounds))

    def started(self, position: int) -> None:
        self._running.add(position)

    def ended(self, position: int) -> None:
        self._running.discard(position)
