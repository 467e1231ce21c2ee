import pytest

from tests.trainers.telemetry.samples import PROCESSORS, rank, window
from trainers.telemetry.cores import CoreVerdict, excess_cores, judge_cores
from trainers.telemetry.readings import CoreCounters, CorePool, ProcessUse, RankReadings, Reading, WindowReadings

HOG = ProcessUse("python", 4711, 0.98)


def verdict(*ranks: RankReadings) -> CoreVerdict:
    (only,) = judge_cores(ranks)
    return only


@pytest.mark.parametrize(
    ("others", "wanted", "cores", "excess"),
    [
        (1.0, 1.0, 2, 0.0),  # on the core that is free
        (1.0, 2.0, 2, 1.0),  # none is free
        (1.5, 1.0, 2, 0.5),
        (0.3, 1.0, 0.5, 0.3),  # the trial wants more than there is: it loses all that others use, and no more
        (0.0, 8.0, 2, 0.0),  # its own threads in one another's way are no others
    ],
)
def test_others_take_what_they_use_beyond_what_the_trial_leaves_free(
    others: float, wanted: float, cores: float, excess: float
) -> None:
    assert excess_cores(others, wanted, cores) == pytest.approx(excess)


def test_a_process_that_takes_a_core_that_was_wanted_contends_and_is_named() -> None:
    ranks = [
        rank(0, window(own=0.7, busy=2.0), processes=(ProcessUse("python", 1001, 0.6), HOG)),
        rank(1, window(own=0.6)),
    ]
    found = verdict(*ranks)
    assert found.row.trial_cores == pytest.approx(1.3)
    assert found.row.others_cores == pytest.approx(0.7)
    assert found.reasons == [
        "others used 0.70 of 2 cores (processors) of a where the trial wanted 2.00: python (pid 4711) 0.98"
    ]
    assert [(row.name, row.pid, row.cores) for row in found.row.others] == [("python", 4711, 0.98)]


def test_the_three_busiest_are_named_and_ten_are_kept() -> None:
    uses = tuple(ProcessUse(f"p{n}", n, n / 100) for n in range(1, 20))
    found = verdict(rank(0, window(own=0.1, busy=2.0), processes=uses))
    assert [row.pid for row in found.row.others] == list(range(19, 9, -1))
    assert found.reasons[0].endswith(": p19 (pid 19) 0.19, p18 (pid 18) 0.18, p17 (pid 17) 0.17")


def test_a_process_on_a_core_that_is_free_does_not() -> None:
    found = verdict(rank(0, window(own=1.0, busy=2.0), processes=(HOG,)))
    assert found.row.others_cores == pytest.approx(1.0)
    assert found.reasons == []


def test_rays_own_processes_do_not() -> None:
    # Recorded on two cores, both wanted: a head with its dashboard and the leader of the trial use 0.12.
    assert verdict(rank(0, window(own=0.95, busy=1.97)), rank(1, window(own=0.90))).reasons == []


def test_of_many_ranks_a_single_one_held_up_is_enough() -> None:
    # Sixteen ranks on sixteen cores and one process that computes: 6 % of all, but one rank has half a core.
    pool = CorePool("boot", "processors", 16)
    ranks = [rank(n, window(own=15 / 16, busy=16.0 if n == 0 else None), pools=(pool,)) for n in range(16)]
    assert len(verdict(*ranks).reasons) == 1
    # One rank with sixteen threads loses six percent.
    assert verdict(rank(0, window(own=15.0, busy=16.0), pools=(pool,), num_threads=16)).reasons == []


def test_loader_workers_are_wanted_cores_too() -> None:
    # One thread, a loader worker and somebody else, two thirds of a core each.
    found = verdict(rank(0, window(own=1.34, children=0.67, busy=2.0)))
    assert found.reasons[0].startswith("others used 0.66 of 2 cores (processors) of a where the trial wanted 1.67")
    assert verdict(rank(0, window(own=1.34, busy=2.0))).reasons == []


def test_what_falls_within_the_ticks_of_the_counters_is_nothing() -> None:
    # 0.05 s in which one tick of 10 ms on either core would be a third of the time.
    assert verdict(rank(0, window(own=0.05, busy=0.08, seconds=0.05), num_threads=2)).reasons == []


def test_stolen_time_contends_whatever_the_others_do() -> None:
    found = verdict(rank(0, window(own=1.0, busy=1.02, steal=0.2)))
    assert found.row.steal_share == pytest.approx(0.2 / 1.22)
    assert found.reasons == ["the hypervisor took 16.4% of the processor time wanted on a (steal)"]
    assert verdict(rank(0, window(own=1.0, busy=1.02, steal=0.02))).reasons == []


def test_the_windows_count_together() -> None:
    quiet, loud = window(own=1.0, busy=1.0), window(own=0.6, busy=2.0)
    assert verdict(rank(0, *[quiet] * 20, loud, num_threads=2)).reasons == []
    assert verdict(rank(0, quiet, loud, num_threads=2)).row.others_cores == pytest.approx(0.7)
    assert len(verdict(rank(0, quiet, loud, num_threads=2)).reasons) == 1


def test_a_quota_is_judged_for_the_ranks_under_it() -> None:
    quota = CorePool("boot cgroup 7", "quota", 0.5)

    def reading(own: float, busy: float, used: float) -> Reading:
        return Reading(own + 10, own, 0.0, (CoreCounters(busy), CoreCounters(used)))

    limited = rank(
        0,
        WindowReadings(reading(0, 0, 0), Reading(11, 0.29, 0.0, (CoreCounters(0.31), CoreCounters(0.5)))),
        pools=(PROCESSORS, quota),
    )
    processors, group = judge_cores([limited])
    assert processors.reasons == []
    assert (group.row.cores, group.row.limit) == (0.5, "quota")
    assert group.reasons == [
        "others used 0.21 of 0.5 cores (quota) of a where the trial wanted 1.00: "
        "processes that had ended or cannot be seen from here 0.21"
    ]


def test_each_machine_is_judged_by_itself() -> None:
    other = CorePool("other boot", "processors", 4)
    here = rank(0, window(own=1.0, busy=1.0))
    there = rank(1, window(own=0.5, busy=4.0), pools=(other,), machine="other boot", node="b")
    first, second = judge_cores([here, there])
    assert first.reasons == []
    assert second.reasons[0].startswith("others used 3.50 of 4 cores (processors) of b")


def test_without_counters_nothing_is_said() -> None:
    assert judge_cores([rank(0, window(own=1.0))]) == []
