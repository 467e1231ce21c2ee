"""Each rule where it fires and where it must stay silent."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from service.analysis.analyse import analyse
from service.analysis.finding import Finding, FindingCode
from service.analysis.findings.communication import halving_factor
from service.analysis.observation import EpochObservation, Estimate, LinkObservation, Observation
from service.analysis.series import ScalingAsked
from service.states import Reason
from tests.service.analysis.observed import estimate, observed, pairs, ranks, taken_apart

STRONG = ScalingAsked(mode="strong")


def found(code: FindingCode, runs: Sequence[Observation], asked: ScalingAsked = STRONG) -> list[Finding]:
    return [finding for finding in analyse(runs, asked).findings if finding.code is code]


def only(code: FindingCode, runs: Sequence[Observation], asked: ScalingAsked = STRONG) -> Finding:
    (finding,) = found(code, runs, asked)
    return finding


def scaled(steps: Sequence[float], **fields: Any) -> list[Observation]:
    """World size 1, 2, ... with these step seconds at micro batch 64."""
    return [observed(size, seconds, world_size=size, **fields) for size, seconds in enumerate(steps, 1)]


def epochs(*seconds: float) -> tuple[EpochObservation, ...]:
    return tuple(EpochObservation(number, one) for number, one in enumerate(seconds, 1))


class TestSweetSpot:
    def test_the_smallest_batch_that_is_as_good_is_named_with_its_ties(self) -> None:
        runs = [observed(n, batch / rate, micro_batch=batch) for n, batch, rate in _RATES]
        finding = only(FindingCode.SWEET_SPOT, runs)
        assert "Set the micro batch to 64" in finding.message
        assert "tied with it: 128" in finding.message
        assert finding.evidence["train_micro_batch_size_per_gpu"] == 64
        assert finding.evidence["trials"] == [1, 2, 3, 4]

    def test_one_batch_alone_has_none(self) -> None:
        assert not found(FindingCode.SWEET_SPOT, [observed(1, 1.0)])


_RATES = ((1, 16, 200.0), (2, 32, 300.0), (3, 64, 390.0), (4, 128, 400.0))


class TestMemoryFrontier:
    def test_it_lies_between_the_last_that_ran_and_the_first_that_did_not(self) -> None:
        fits = observed(1, 1.0, micro_batch=64, peak_memory_bytes=10_200_000_000)
        bursts = observed(2, None, micro_batch=128, reason=Reason.OUT_OF_MEMORY)
        finding = only(FindingCode.MEMORY_FRONTIER, [fits, bursts])
        assert "between micro batch 64 (peak 10.2 GB) and 128" in finding.message
        assert "gradient_accumulation_steps 2 at micro batch 64" in finding.message
        assert (finding.evidence["largest_that_ran"], finding.evidence["smallest_out_of_memory"]) == (64, 128)

    def test_nothing_that_fits_is_a_warning(self) -> None:
        finding = only(FindingCode.MEMORY_FRONTIER, [observed(1, None, reason=Reason.OUT_OF_MEMORY)])
        assert (finding.severity, finding.evidence["largest_that_ran"]) == ("warning", None)

    def test_another_failure_is_no_frontier(self) -> None:
        runs = [observed(1, 1.0), observed(2, None, micro_batch=128, reason=Reason.TIMEOUT)]
        assert not found(FindingCode.MEMORY_FRONTIER, runs)


class TestCommunicationBound:
    def run(self, share: float, *, interval: float | None = None, **fields: Any) -> Observation:
        part = estimate(share, interval)
        return observed(fields.pop("trial", 1), 1.0, world_size=2, communication_seconds=part, **fields)

    def test_what_would_halve_it_is_computed(self) -> None:
        finding = only(FindingCode.COMMUNICATION_BOUND, [self.run(0.3)])
        assert (finding.severity, finding.evidence["share"]) == ("warning", pytest.approx(0.3))
        factor = 1.7 / 0.7
        halved = finding.evidence["halved_by"]
        assert halved["link_factor"] == pytest.approx(factor)
        assert halved["train_micro_batch_size_per_gpu"] == 156  # 64 x 2.43, rounded up
        assert halved["gradient_accumulation_steps"] == 3
        # The definition itself: the rest so much longer, or the exchange so much shorter, gives half the share.
        assert 0.3 / (0.3 + 0.7 * factor) == pytest.approx(0.15)
        assert 0.3 / factor / (0.3 / factor + 0.7) == pytest.approx(0.15)

    def test_half_the_step_is_critical(self) -> None:
        assert only(FindingCode.COMMUNICATION_BOUND, [self.run(0.5)]).severity == "critical"

    def test_a_larger_batch_that_was_measured_is_named_with_its_share(self) -> None:
        larger = observed(2, 4.0, world_size=2, micro_batch=256, communication_seconds=estimate(0.3))
        finding = only(FindingCode.COMMUNICATION_BOUND, [self.run(0.3), larger])
        assert finding.evidence["halved_by"]["train_micro_batch_size_per_gpu"] == 256
        assert "micro batch 256 (there it is 8%)" in finding.message

    def test_a_batch_beyond_memory_and_accumulation_where_each_step_exchanges_are_not_advised(self) -> None:
        stage = {"zero_stage": 2}
        burst = observed(2, None, world_size=2, micro_batch=128, reason=Reason.OUT_OF_MEMORY, parameters=stage)
        finding = only(FindingCode.COMMUNICATION_BOUND, [self.run(0.3, parameters=stage), burst])
        assert list(finding.evidence["halved_by"]) == ["link_factor"]

    def test_a_small_share_or_one_within_the_noise_of_the_limit_is_silent(self) -> None:
        assert not found(FindingCode.COMMUNICATION_BOUND, [self.run(0.19)])
        assert not found(FindingCode.COMMUNICATION_BOUND, [self.run(0.21, interval=0.1)])
        assert not found(FindingCode.COMMUNICATION_BOUND, [observed(1, 1.0, world_size=2)])
        assert not found(FindingCode.COMMUNICATION_BOUND, [observed(1, 1.0, communication_seconds=estimate(0.5))])

    def test_the_exchange_of_the_rank_that_waits_least_counts(self) -> None:
        waits = observed(1, 1.0, world_size=2, ranks=ranks([0.4, 0.9], [0.6, 0.1]))
        assert not found(FindingCode.COMMUNICATION_BOUND, [waits])

    def test_of_a_step_taken_apart_it_is_what_is_exposed_with_its_interval_and_of_that_step(self) -> None:
        """The windows' mean is longer than the step of the pass: the shares are of the latter."""
        finding = only(FindingCode.COMMUNICATION_BOUND, [taken_apart(communication=0.4, seconds=9.0)])
        assert finding.evidence["share"] == pytest.approx(0.4)
        assert finding.evidence["step_seconds"] == pytest.approx(1.0)
        assert "takes 40% (95 % between 39% and 41%) of a step" in finding.message
        assert "as far as computing does not hide it" in finding.message

    def test_its_lower_end_decides(self) -> None:
        assert not found(FindingCode.COMMUNICATION_BOUND, [taken_apart(communication=0.16, certainty=0.1)])
        assert found(FindingCode.COMMUNICATION_BOUND, [taken_apart(communication=0.16, certainty=0.01)])
        assert not found(FindingCode.COMMUNICATION_BOUND, [taken_apart(communication=-0.05)])

    def test_between_two_nodes_the_link_is_named_with_what_goes_over_it(self) -> None:
        run = taken_apart(communication=1.8, communication_wire_bytes=22e6, links=pairs(n0_n1=12.5))
        finding = only(FindingCode.COMMUNICATION_BOUND, [run])
        assert (
            "each worker sends 22 MB a step, and the link between the nodes n0 and n1 carries 12.5 MB/s"
            in finding.message
        )
        assert finding.evidence["link"]["nodes"] == ["n0", "n1"]
        assert finding.evidence["link"]["wire_seconds"] == pytest.approx(22 / 12.5)
        assert not found(FindingCode.SLOW_LINK, [run])  # there is no other to compare it with

    @pytest.mark.parametrize(
        ("nodes", "words"),
        [
            (("n0", "n0"), "within node n0 an exchange goes at 12.5 MB/s"),
            (("n0", "n1", "n2"), "the network between 3 nodes carries 12.5 MB/s"),
        ],
    )
    def test_else_what_all_workers_reach_together_is_told(self, nodes: tuple[str, ...], words: str) -> None:
        everyone = LinkObservation("all", nodes, None, estimate(12.5e6, 0.02))
        run = taken_apart(compute=[0.6] * len(nodes), communication=0.6, links=(everyone,))
        assert words in only(FindingCode.COMMUNICATION_BOUND, [run]).message

    @pytest.mark.parametrize("share", [0.99, 1.0, 1.2])
    def test_a_share_that_noise_made_too_large_gives_a_number_still(self, share: float) -> None:
        assert halving_factor(share) == pytest.approx(21)


class TestDataBound:
    def test_the_share_and_what_helps_are_told(self) -> None:
        run = observed(1, 1.0, data_wait_seconds=estimate(0.2), parameters={"input_pipeline": "loader"})
        finding = only(FindingCode.DATA_BOUND, [run])
        assert finding.evidence["share"] == pytest.approx(0.2)
        assert "loader_workers" in finding.message
        assert "25% faster" in finding.message

    def test_ranks_are_averaged_where_the_trial_says_nothing(self) -> None:
        rows = ranks([0.8, 0.8], data_wait_seconds=[0.3, 0.1])
        assert only(FindingCode.DATA_BOUND, [observed(1, 1.0, world_size=2, ranks=rows)]).evidence["share"] == 0.2

    def test_decoding_is_told_from_copying(self) -> None:
        loader = {"input_pipeline": "loader"}
        run = taken_apart(compute=[0.6], data_wait=[0.2], parameters=loader, decode_seconds=estimate(0.7))
        decoding = only(FindingCode.DATA_BOUND, [replace(run, copy_to_device_seconds=estimate(0.02))])
        assert "the loader decodes for 0.7 s a step in its processes" in decoding.message
        assert decoding.evidence["share"] == pytest.approx(0.25)
        copying = only(FindingCode.DATA_BOUND, [replace(run, copy_to_device_seconds=estimate(0.15))])
        assert "75% of it is the copy to the device, not decoding" in copying.message
        assert "loader_workers" not in copying.message

    def loading(self, trial: int, micro_batch: int, per_image: float, certainty: float = 0.02) -> Observation:
        whole = micro_batch * per_image
        return taken_apart(
            trial,
            compute=[0.6],
            data_wait=[0.2],
            micro_batch=micro_batch,
            parameters={"input_pipeline": "loader"},
            decode_seconds=estimate(whole, certainty),
        )

    def test_a_larger_batch_that_loads_slower_is_seen(self) -> None:
        runs = [self.loading(1, 8, 0.001), self.loading(2, 32, 0.0012), self.loading(3, 64, 0.0015)]
        finding = only(FindingCode.DATA_BOUND, runs)
        assert "an image takes 1.50 times as long to decode at micro batch 64 as at 8 (trials 1, 3)" in finding.message
        assert finding.evidence["loading_growth"]["image_seconds"] == [pytest.approx(0.001), pytest.approx(0.0015)]

    @pytest.mark.parametrize(("per_image", "certainty"), [(0.00104, 0.001), (0.0012, 0.1), (0.0008, 0.01)])
    def test_an_image_that_loads_as_fast_within_the_noise_or_faster_is_no_growth(
        self, per_image: float, certainty: float
    ) -> None:
        runs = [self.loading(1, 8, 0.001, certainty), self.loading(2, 64, per_image, certainty)]
        assert only(FindingCode.DATA_BOUND, runs).evidence["loading_growth"] is None

    def test_a_small_or_uncertain_share_is_silent(self) -> None:
        for part in (estimate(0.09), estimate(0.11, 0.2)):
            assert not found(FindingCode.DATA_BOUND, [observed(1, 1.0, data_wait_seconds=part)])


class TestStraggler:
    def test_a_slow_computer_is_named(self) -> None:
        runs = [observed(n, 1.0, world_size=3, repeat=n, ranks=ranks([0.6, 0.6, 0.9])) for n in (1, 2)]
        finding = only(FindingCode.STRAGGLER, runs)
        assert {key: finding.evidence[key] for key in ("kind", "rank", "node", "device")} == {
            "kind": "compute",
            "rank": 2,
            "node": "n2",
            "device": "Tesla T4",
        }
        assert finding.evidence["ratio"] == pytest.approx(1.5)
        assert finding.evidence["held_up_share"] == pytest.approx(0.3)
        assert finding.evidence["trials"] == [1, 2]

    def test_a_slow_link_is_told_from_a_worker_that_waits(self) -> None:
        """Rank 1 exchanges for longer with equal compute; in the second trial it only waits for rank 0."""
        link = observed(1, 1.0, world_size=3, ranks=ranks([0.6, 0.6, 0.6], [0.1, 0.4, 0.1]))
        finding = only(FindingCode.STRAGGLER, [link])
        assert (finding.evidence["kind"], finding.evidence["rank"]) == ("link", 1)
        waiting = observed(1, 1.0, world_size=3, ranks=ranks([0.85, 0.6, 0.85], [0.1, 0.35, 0.1]))
        assert not found(FindingCode.STRAGGLER, [waiting])

    @pytest.mark.parametrize("compute", [[0.6, 0.6, 0.65], [0.60, 0.61, 0.62], [0.01, 0.01, 0.02]])
    def test_differences_within_the_noise_or_without_effect_are_silent(self, compute: list[float]) -> None:
        assert not found(FindingCode.STRAGGLER, [observed(1, 1.0, world_size=3, ranks=ranks(compute))])

    def test_from_step_times_alone_nobody_can_tell(self) -> None:
        """However different the steps of ranks or the trials: not a guess, and what would tell."""
        rows = ranks([None, None], step_seconds=[1.0, 1.4])
        finding = only(FindingCode.STRAGGLER, [*scaled([1.0, 3.0]), observed(9, 2.0, world_size=2, ranks=rows)])
        assert (finding.severity, finding.evidence["kind"]) == ("info", "cannot_tell")
        assert "measurement.communication: true" in finding.message
        assert "rank" not in finding.evidence

    def test_the_parts_of_one_rank_do_not_tell_either(self) -> None:
        finding = only(FindingCode.STRAGGLER, [observed(1, 5.0, world_size=2, ranks=ranks([0.6], [4.4]))])
        assert finding.evidence["kind"] == "cannot_tell"
        assert "only some workers' parts are known" in finding.message

    def test_one_worker_is_silent(self) -> None:
        assert not found(FindingCode.STRAGGLER, [observed(1, 1.0)])

    def test_without_a_steps_time_the_parts_make_the_step(self) -> None:
        """Imported epochs without their steps: rank 1 exchanges for 0.4 s of at most 0.8 s; where all parts are 0,
        there is nothing to tell."""
        times = {"step_seconds": None, "images_per_second": None}
        slow = observed(1, 1.0, world_size=3, ranks=ranks([0.4] * 3, [0.1, 0.4, 0.1]), **times)
        finding = only(FindingCode.STRAGGLER, [slow])
        assert finding.evidence["kind"] == "link"
        assert finding.evidence["held_up_share"] == pytest.approx(0.3 / 0.8)
        no_compute = observed(1, 1.0, world_size=3, ranks=ranks([0.0] * 3, [0.1, 0.4, 0.1]), **times)
        assert only(FindingCode.STRAGGLER, [no_compute]).evidence["held_up_share"] == pytest.approx(0.3 / 0.4)
        nothing = observed(1, 1.0, world_size=3, ranks=ranks([0.0] * 3, [0.0] * 3), **times)
        assert not found(FindingCode.STRAGGLER, [nothing])

    def test_waiting_for_nobody_known_is_told_as_that(self) -> None:
        run = observed(1, 1.0, world_size=2, straggler_wait_seconds=estimate(0.2))
        assert only(FindingCode.STRAGGLER, [run]).evidence["kind"] == "unknown"
        short = observed(1, 1.0, world_size=2, straggler_wait_seconds=estimate(0.02))
        assert not found(FindingCode.STRAGGLER, [short])


class TestStragglerOfAStepTakenApart:
    def test_the_slow_worker_is_named_with_its_node_and_what_it_costs(self) -> None:
        run = taken_apart(compute=[0.4, 0.8], communication=0.2)
        finding = only(FindingCode.STRAGGLER, [run])
        assert (finding.severity, finding.evidence["kind"]) == ("warning", "compute")
        assert (finding.evidence["rank"], finding.evidence["node"]) == (1, "n1")
        assert finding.evidence["ratio"] == pytest.approx(2.0)
        assert finding.evidence["held_up_share"] == pytest.approx(0.4)
        assert finding.evidence["persistent_share"] == pytest.approx(0.2)  # rank 0 waits for 0.4 s, rank 1 for none
        assert "the mean worker waits 20.0% of it for the same one every time, and 0.0% for now" in finding.message

    def test_the_lower_end_of_the_persistent_part_decides(self) -> None:
        slow = taken_apart(compute=[0.5, 0.6], certainty=0.1)
        assert found(FindingCode.STRAGGLER, [slow])
        unsure = replace(slow, straggler_persistent_seconds=Estimate(0.05, 0.02, 0.08))
        assert not found(FindingCode.STRAGGLER, [unsure])

    @pytest.mark.parametrize("compute", [[0.60, 0.65], [0.60, 0.61, 0.62], [0.6, 0.6], [0.3, 0.6, 0.6, 0.6]])
    def test_alike_workers_and_one_that_is_faster_are_silent(self, compute: list[float]) -> None:
        assert not found(FindingCode.STRAGGLER, [taken_apart(compute=compute, communication=0.3)])

    def test_waits_that_change_from_step_to_step_name_nobody(self) -> None:
        finding = only(FindingCode.STRAGGLER, [taken_apart(compute=[0.6, 0.61], jitter=0.15)])
        assert finding.evidence["kind"] == "jitter"
        assert "now this one and now that" in finding.message
        assert "rank" not in finding.evidence
        assert not found(FindingCode.STRAGGLER, [taken_apart(compute=[0.6, 0.61], jitter=0.05)])

    def test_a_slow_device_behind_a_slow_link_is_named_still(self) -> None:
        """It costs 2 % of this step, and would cost half of it on a better link."""
        finding = only(FindingCode.STRAGGLER, [taken_apart(compute=[0.04, 0.08], communication=1.92)])
        assert (finding.severity, finding.evidence["rank"]) == ("info", 1)
        assert finding.evidence["held_up_share"] == pytest.approx(0.02)

    def test_a_worker_whose_data_is_late_is_told_from_one_that_computes_slowly(self) -> None:
        finding = only(FindingCode.STRAGGLER, [taken_apart(compute=[0.6, 0.6], data_wait=[0.01, 0.3])])
        assert (finding.evidence["kind"], finding.evidence["rank"]) == ("data", 1)
        assert "computes" not in finding.message


class TestSlowLink:
    def run(self, trial: int = 1, *, compute: Sequence[float] = (0.6, 0.6, 0.6), **betas: float) -> Observation:
        return taken_apart(trial, compute=compute, links=pairs(**betas))

    def test_the_node_whose_link_is_slow_with_every_other_is_named(self) -> None:
        finding = only(FindingCode.SLOW_LINK, [self.run(n0_n1=120.0, n0_n2=12.5, n1_n2=12.0)])
        assert (finding.evidence["kind"], finding.evidence["nodes"]) == ("node", ["n2"])
        assert finding.evidence["beta_bytes_per_second"] == pytest.approx(12.5e6)
        assert finding.evidence["ratio"] == pytest.approx(12.5 / 120)
        assert "The link of node n2 carries 12.5 MB/s" in finding.message
        assert "other nodes reach 120 MB/s" in finding.message

    def test_a_pair_that_is_slow_though_both_its_ends_are_not(self) -> None:
        finding = only(FindingCode.SLOW_LINK, [self.run(n0_n1=12.5, n0_n2=120.0, n1_n2=110.0)])
        assert (finding.evidence["kind"], finding.evidence["nodes"]) == ("pair", ["n0", "n1"])
        assert finding.evidence["usual_bytes_per_second"] == pytest.approx(110e6)

    def test_two_slow_nodes_of_four_are_both_named(self) -> None:
        betas = {"n0_n1": 100.0, "n0_n2": 10.0, "n0_n3": 20.0, "n1_n2": 10.0, "n1_n3": 20.0, "n2_n3": 10.0}
        findings = found(FindingCode.SLOW_LINK, [self.run(compute=[0.6] * 4, **betas)])
        assert [finding.evidence["nodes"] for finding in findings] == [["n2"], ["n3"]]

    @pytest.mark.parametrize(
        "betas",
        [
            {"n0_n1": 100.0, "n0_n2": 90.0, "n1_n2": 75.0},
            {"n0_n1": 12.0, "n0_n2": 12.5, "n1_n2": 12.2},
            {"n0_n1": 12.5},
            {},
        ],
    )
    def test_links_that_are_alike_or_have_no_other_to_compare_with_are_silent(self, betas: dict[str, float]) -> None:
        assert not found(FindingCode.SLOW_LINK, [self.run(**betas)])

    def test_within_the_noise_it_is_silent(self) -> None:
        links = pairs(certainty=0.3, n0_n1=100.0, n0_n2=60.0, n1_n2=60.0)
        assert not found(FindingCode.SLOW_LINK, [taken_apart(compute=[0.6] * 3, links=links)])

    def test_a_slow_device_is_not_called_a_slow_link_nor_the_other_way_round(self) -> None:
        """A node with half the processor time moves bytes at half the rate, too; a limited link computes alike."""
        device = self.run(compute=[0.6, 0.6, 1.2], n0_n1=800.0, n0_n2=350.0, n1_n2=360.0)
        assert not found(FindingCode.SLOW_LINK, [device])
        assert only(FindingCode.STRAGGLER, [device]).evidence["node"] == "n2"
        link = self.run(n0_n1=800.0, n0_n2=12.5, n1_n2=12.5)
        assert not found(FindingCode.STRAGGLER, [link])
        assert only(FindingCode.SLOW_LINK, [link]).evidence["nodes"] == ["n2"]

    def test_both_at_once_are_both_named_rightly(self) -> None:
        both = self.run(compute=[0.6, 1.2, 0.6], n0_n1=350.0, n0_n2=12.5, n1_n2=12.5)
        assert only(FindingCode.STRAGGLER, [both]).evidence["node"] == "n1"
        assert only(FindingCode.SLOW_LINK, [both]).evidence["nodes"] == ["n2"]

    def test_one_node_in_one_measured_pair_only_may_be_either(self) -> None:
        finding = only(FindingCode.SLOW_LINK, [self.run(n0_n1=120.0, n0_n2=12.5)])
        assert (finding.evidence["kind"], finding.evidence["nodes"]) == ("pair", ["n0", "n2"])

    def test_what_shows_in_one_trial_of_three_is_chance(self) -> None:
        good = [self.run(n, n0_n1=100.0, n0_n2=95.0, n1_n2=90.0) for n in (1, 2)]
        bad = self.run(3, n0_n1=100.0, n0_n2=50.0, n1_n2=50.0)
        assert not found(FindingCode.SLOW_LINK, [*good, bad])
        assert only(FindingCode.SLOW_LINK, [good[0], bad, replace(bad, trial=4)]).evidence["trials"] == [3, 4]


class TestMixedHardware:
    def test_within_a_trial_and_between_trials(self) -> None:
        mixed = observed(2, 1.0, world_size=2, devices=("A", "B"))
        assert only(FindingCode.MIXED_HARDWARE, [observed(1, 1.0, device="A"), mixed]).evidence["mixed_within"] == [2]
        between = [observed(1, 1.0, device="A"), observed(2, 1.0, world_size=2, device="B")]
        finding = only(FindingCode.MIXED_HARDWARE, between)
        assert (finding.evidence["devices"], finding.evidence["mixed_within"]) == (["A", "B"], [])

    def test_one_kind_is_silent(self) -> None:
        assert not found(FindingCode.MIXED_HARDWARE, scaled([1.0, 1.0]))


class TestScaling:
    def test_better_than_perfect_puts_the_baseline_in_doubt(self) -> None:
        finding = only(FindingCode.BASELINE_SUSPECT, scaled([1.2, 1.0, 1.02]))
        assert (finding.evidence["baseline_trials"], finding.evidence["world_size"]) == ([1], 2)
        assert "20% faster than at the baseline (trial 1)" in finding.message
        assert not found(FindingCode.NEAR_IDEAL, scaled([1.2, 1.0, 1.02]))

    def test_within_the_noise_it_does_not(self) -> None:
        assert not found(FindingCode.BASELINE_SUSPECT, scaled([1.04, 1.0, 1.0]))
        assert not found(FindingCode.BASELINE_SUSPECT, scaled([1.2, 1.0], interval=0.3))

    def test_a_faster_device_does_not(self) -> None:
        runs = [observed(1, 1.2, device="A"), observed(2, 1.0, world_size=2, device="B")]
        assert not found(FindingCode.BASELINE_SUSPECT, runs)

    def test_near_ideal_is_told_with_its_noise(self) -> None:
        finding = only(FindingCode.NEAR_IDEAL, scaled([1.0, 1.01, 1.03]))
        assert finding.evidence["efficiency"] == pytest.approx(1 / 1.03)
        assert finding.evidence["efficiency_ci95_low"] == pytest.approx(1 / 1.03 / 1.05)

    @pytest.mark.parametrize("steps", [[1.0, 1.01], [1.0, 1.01, 1.2], [1.0, 1.3, 1.01]])
    def test_one_size_alone_or_one_that_falls_off_is_not(self, steps: list[float]) -> None:
        assert not found(FindingCode.NEAR_IDEAL, scaled(steps))


class TestSlowdown:
    def test_more_workers_that_train_slower_without_parts_leave_the_cause_open(self) -> None:
        finding = only(FindingCode.SLOWDOWN, scaled([1.0, 2.5]))
        assert (finding.severity, finding.evidence["cause"]) == ("warning", "unknown")
        assert finding.evidence["throughput_ratio"] == pytest.approx(0.8)
        assert only(FindingCode.SLOWDOWN, scaled([1.0, 5.0])).severity == "critical"

    def test_less_gain_than_hoped_for_is_none(self) -> None:
        assert not found(FindingCode.SLOWDOWN, scaled([1.0, 1.8, 2.6]))

    def test_a_loss_within_the_noise_is_none(self) -> None:
        assert not found(FindingCode.SLOWDOWN, scaled([1.0, 2.08]))
        assert not found(FindingCode.SLOWDOWN, scaled([1.0, 2.3], interval=0.2))

    def test_with_the_parts_of_all_workers_the_worker_is_told_from_the_link(self) -> None:
        one = observed(1, 1.0, ranks=ranks([1.0], [0.0]))
        slow_worker = observed(2, 4.0, world_size=2, ranks=ranks([1.0, 3.8], [3.0, 0.2]))
        finding = only(FindingCode.SLOWDOWN, [one, slow_worker])
        assert finding.evidence["cause"] == "worker"
        assert finding.evidence["worker_images_per_second"] == pytest.approx(64 / 3.8)
        slow_link = observed(2, 4.0, world_size=2, ranks=ranks([1.0, 1.0], [3.0, 3.0]))
        finding = only(FindingCode.SLOWDOWN, [one, slow_link])
        assert finding.evidence["cause"] == "link"
        # 2 (2 - 1) / 2 of 86.6 million parameters, 4 bytes each, in 3 s.
        assert finding.evidence["link_gigabytes_per_second"]["at_most"] == pytest.approx(0.1154, rel=0.001)

    def test_the_trials_own_parts_tell_too(self) -> None:
        one = observed(1, 1.0, compute_seconds=estimate(1.0), communication_seconds=estimate(0.0))
        parts = {"compute_seconds": estimate(1.0), "communication_seconds": estimate(0.2)}
        waits = observed(2, 4.0, world_size=2, straggler_wait_seconds=estimate(2.8), **parts)
        assert only(FindingCode.SLOWDOWN, [one, waits]).evidence["cause"] == "worker"
        parts["communication_seconds"] = estimate(3.0)
        assert only(FindingCode.SLOWDOWN, [one, observed(2, 4.0, world_size=2, **parts)]).evidence["cause"] == "link"

    def test_what_the_model_and_devices_do_not_tell_is_not_made_up(self) -> None:
        rows = [(1, 1.0, ranks([1.0], [0.0])), (2, 4.0, ranks([1.0], [3.0]))]
        runs = [
            observed(size, step, world_size=size, ranks=part, device=f"device {size}", parameters={"model": "mine"})
            for size, step, part in rows
        ]
        finding = only(FindingCode.SLOWDOWN, runs)
        assert finding.evidence["link_gigabytes_per_second"] is None
        assert finding.evidence["likelier"] is None
        assert "cannot be told, as no peak rate is known for device 2" in finding.message

    def test_a_slow_enough_device_is_the_likelier_reading(self) -> None:
        """A P4 beside an A100: 5.5 of 19.5 TFLOP/s, and just so much slower."""
        fast, slow = "NVIDIA A100-SXM4-80GB", "Tesla P4"
        one = observed(1, 1.0, device=fast, ranks=ranks([1.0], [0.0]))
        two = observed(2, 3.6, world_size=2, devices=(fast, slow), ranks=ranks([1.0], [2.6]))
        finding = only(FindingCode.SLOWDOWN, [one, two])
        assert finding.evidence["likelier"] == "worker"
        assert finding.evidence["expected_worker_images_per_second"] == pytest.approx(64 * 5.5 / 19.5)

    @pytest.mark.parametrize("compute", [0.0, 0.5])
    def test_where_no_logged_part_grew_none_is_blamed(self, compute: float) -> None:
        one = observed(1, 1.0, world_size=2, ranks=ranks([compute] * 2, [0.1] * 2))
        two = observed(2, 4.0, world_size=4, ranks=ranks([compute] * 4, [0.1] * 4))
        finding = only(FindingCode.SLOWDOWN, [one, two])
        assert finding.evidence["cause"] == "unknown"
        assert "none grew" in finding.message


class TestTrust:
    def test_a_flagged_trial_drifts(self) -> None:
        runs = [observed(1, 1.0), observed(2, 1.0, repeat=1, quality_state="drifting")]
        assert only(FindingCode.DRIFT, runs).evidence["trials"] == [2]

    def test_epochs_that_become_faster_drift(self) -> None:
        run = observed(1, 1.0, epochs=epochs(120, 100, 101, 99, 90, 91, 89))
        assert only(FindingCode.DRIFT, [run]).evidence["changes"]["1"] == pytest.approx(-0.1)

    @pytest.mark.parametrize(
        "seconds",
        [(130, 100, 101, 99, 100, 102), (100, 90, 110, 92, 108, 95), (100, 100, 104, 104, 104), (100, 90, 110)],
    )
    def test_start_up_scatter_a_small_change_or_few_epochs_are_no_drift(self, seconds: tuple[float, ...]) -> None:
        assert not found(FindingCode.DRIFT, [observed(1, 1.0, epochs=epochs(*seconds))])

    def test_a_wide_interval_is_too_noisy_and_its_flag_the_cause(self) -> None:
        run = observed(1, 1.0, interval=0.08, quality_flags=("contended",))
        finding = only(FindingCode.NOISE_TOO_HIGH, [run])
        assert finding.evidence["half_widths"]["1"] == pytest.approx(0.08)
        assert finding.evidence["causes"] == ["contended"]

    def test_runs_of_one_point_that_lie_too_far_apart_are(self) -> None:
        runs = [observed(n, seconds, repeat=n) for n, seconds in ((1, 1.0), (2, 1.1), (3, 1.0))]
        assert only(FindingCode.NOISE_TOO_HIGH, runs).evidence["spreads"][0]["trials"] == [1, 2, 3]

    def test_what_identical_jobs_differ_by_is_not(self) -> None:
        runs = [observed(n, seconds, repeat=n, interval=0.04) for n, seconds in ((1, 1.0), (2, 1.07))]
        assert not found(FindingCode.NOISE_TOO_HIGH, runs)
        assert not found(FindingCode.NOISE_TOO_HIGH, [observed(1, 1.0), observed(2, 2.0, world_size=2)])


class TestAccuracyDrop:
    def runs(self, *accuracies: float, **fields: Any) -> list[Observation]:
        rows = scaled([1.0] * len(accuracies), **fields)
        return [_with_accuracy(run, value) for run, value in zip(rows, accuracies, strict=True)]

    def test_the_batch_that_grew_at_one_learning_rate_is_named(self) -> None:
        finding = only(FindingCode.ACCURACY_DROP, self.runs(0.6, 0.59, 0.5, parameters={"learning_rate": 1e-4}))
        assert finding.evidence["drop"] == pytest.approx(0.1)
        assert "from 64 to 192" in finding.message
        assert "about 0.0003" in finding.message

    def test_a_small_drop_or_a_gain_is_silent(self) -> None:
        assert not found(FindingCode.ACCURACY_DROP, self.runs(0.6, 0.585))
        assert not found(FindingCode.ACCURACY_DROP, self.runs(0.5, 0.6))

    def test_another_learning_rate_is_another_matter(self) -> None:
        runs = self.runs(0.6, parameters={"learning_rate": 1e-4})
        larger = observed(2, 1.0, world_size=2, parameters={"learning_rate": 2e-4}, eval_accuracy=0.5)
        assert not found(FindingCode.ACCURACY_DROP, [*runs, larger])

    def test_more_data_is_too(self) -> None:
        assert not found(FindingCode.ACCURACY_DROP, self.runs(0.6, 0.5), ScalingAsked(mode="weak"))

    def test_repeats_that_overlap_are_silent(self) -> None:
        runs = [
            observed(n, 1.0, world_size=size, repeat=n % 2, eval_accuracy=value)
            for n, size, value in ((1, 1, 0.7), (2, 1, 0.6), (3, 2, 0.61), (4, 2, 0.59))
        ]
        assert not found(FindingCode.ACCURACY_DROP, runs)


def _with_accuracy(run: Observation, value: float) -> Observation:
    return replace(run, eval_accuracy=value)


class TestPrecision:
    def test_fp32_on_a_device_with_faster_formats(self) -> None:
        finding = only(FindingCode.PRECISION, [observed(1, 1.0), observed(2, 1.0, micro_batch=128)])
        assert finding.evidence["peak_ratios"] == {"fp16": pytest.approx(65 / 8.1)}
        assert finding.evidence["trials"] == [1, 2]

    def test_a_gain_that_was_measured_is_told(self) -> None:
        runs = [observed(1, 1.0), observed(2, 0.4, parameters={"precision": "fp16"})]
        assert only(FindingCode.PRECISION, runs).evidence["measured_gains"] == [pytest.approx(2.5)]

    def test_where_it_was_measured_without_a_gain_it_is_silent(self) -> None:
        assert not found(FindingCode.PRECISION, [observed(1, 1.0), observed(2, 0.97, parameters={"precision": "fp16"})])

    @pytest.mark.parametrize("device", ["Tesla P4", "Some CPU", None])
    def test_devices_without_faster_formats_or_unknown_ones_are_silent(self, device: str | None) -> None:
        assert not found(FindingCode.PRECISION, [observed(1, 1.0, device=device)])

    def test_all_devices_of_a_trial_must_have_it(self) -> None:
        run = observed(1, 1.0, world_size=2, devices=("Tesla T4", "Tesla P4"))
        assert not found(FindingCode.PRECISION, [run])

    def test_another_precision_is_silent(self) -> None:
        assert not found(FindingCode.PRECISION, [observed(1, 1.0, parameters={"precision": "fp16"})])


def test_the_most_severe_comes_first() -> None:
    runs = [*scaled([1.0, 5.0]), observed(9, None, micro_batch=999, reason=Reason.OUT_OF_MEMORY)]
    severities = [finding.severity for finding in analyse(runs, STRONG).findings]
    assert severities == sorted(severities, key=("critical", "warning", "info").index)
    assert severities[0] == "critical"


@pytest.mark.parametrize("runs", [[], [observed(1, None)], [observed(1, 1.0, device=None, interval=None)]])
def test_nothing_or_next_to_nothing_gives_no_finding(runs: list[Observation]) -> None:
    assert analyse(runs, STRONG).findings == []
