"""What the findings say of the paper's own runs."""

from collections import Counter

import pytest

from service.analysis.analyse import analyse
from service.analysis.finding import Finding, FindingCode
from service.analysis.scaling import Mode
from service.analysis.series import ScalingAsked
from tests.service.analysis.paper import paper_runs


def findings(series: str, mode: Mode = "strong", *, with_parts: bool = True) -> list[Finding]:
    return analyse(paper_runs(series, with_parts=with_parts), ScalingAsked(mode=mode)).findings


def codes(found: list[Finding]) -> Counter[FindingCode]:
    return Counter(finding.code for finding in found)


@pytest.fixture(scope="module")
def tesla() -> list[Finding]:
    """RTX 3070 x 3, then a Tesla P4, then a GTX 1070, each in a node of its own."""
    return findings("tesla-strong")


def slowdown_at(found: list[Finding], world_size: int) -> Finding:
    (finding,) = [f for f in found if f.code is FindingCode.SLOWDOWN and f.evidence["world_size"] == world_size]
    return finding


class TestTesla:
    def test_the_fifth_worker_has_both_readings_with_their_numbers(self, tesla: list[Finding]) -> None:
        finding = slowdown_at(tesla, 5)
        assert finding.severity == "critical"
        assert finding.evidence["cause"] == "link or worker"
        assert finding.evidence["epoch_seconds"] == pytest.approx([986.0, 3436.0], abs=0.05)
        assert finding.evidence["compute_seconds"] == pytest.approx([0.677, 0.670], abs=0.001)
        assert finding.evidence["exchange_seconds"] == pytest.approx([0.532, 4.775], abs=0.001)
        # ViT-B/16 has 86.6 million parameters: 554 MB over each link of a ring of five.
        link = finding.evidence["link_gigabytes_per_second"]
        assert link["if_all_is_transfer"] == pytest.approx(8 / 5 * 4 * 86_567_656 / 4.7751 / 1e9, rel=1e-6)
        assert link["if_all_is_transfer"] < 0.125 < link["at_most"]  # that node's network card: 1 Gbit/s
        assert link["at_most"] == pytest.approx(0.1306, abs=1e-4)
        worker = finding.evidence["worker_images_per_second"]
        assert worker["at_most"] == pytest.approx(16 / (0.67029 + 4.7751 - 0.53243), rel=1e-4)
        assert worker["if_all_is_waiting"] == pytest.approx(16 / (0.67029 + 4.7751), rel=1e-4)

    def test_the_devices_known_peak_makes_the_link_likelier_and_a_measurement_would_settle_it(
        self, tesla: list[Finding]
    ) -> None:
        finding = slowdown_at(tesla, 5)
        # One RTX 3070 trains 70 images/s; a GTX 1070 has 6.5 of its 20.3 TFLOP/s.
        assert finding.evidence["expected_worker_images_per_second"] == pytest.approx(
            50_000 / 712.96 * 6.5 / 20.3, rel=1e-3
        )
        assert finding.evidence["likelier"] == "link"
        for words in ("at most 0.13 GB/s", "at most 3.3 images/s", "GTX 1070 should reach about 22 images/s",
                      "so the link is likelier", "measurement.communication: true"):  # fmt: skip
            assert words in finding.message

    def test_the_fourth_is_a_slower_worker(self, tesla: list[Finding]) -> None:
        finding = slowdown_at(tesla, 4)
        assert finding.evidence["cause"] == "worker"
        assert finding.evidence["added_devices"] == ["Tesla P4"]
        assert finding.evidence["worker_images_per_second"] == pytest.approx(23.7, abs=0.05)

    def test_the_second_has_no_log_to_tell_and_the_third_is_within_the_noise(self, tesla: list[Finding]) -> None:
        assert slowdown_at(tesla, 2).evidence["cause"] == "unknown"
        assert codes(tesla)[FindingCode.SLOWDOWN] == 3

    def test_nobody_is_called_a_straggler_by_one_ranks_log(self, tesla: list[Finding]) -> None:
        (finding,) = [finding for finding in tesla if finding.code is FindingCode.STRAGGLER]
        assert (finding.severity, finding.evidence["kind"]) == ("info", "cannot_tell")

    def test_the_unlike_devices_are_named(self, tesla: list[Finding]) -> None:
        (finding,) = [finding for finding in tesla if finding.code is FindingCode.MIXED_HARDWARE]
        assert finding.evidence["mixed_within"] == [4, 5]

    def test_step_times_alone_give_no_cause(self) -> None:
        found = findings("tesla-strong", with_parts=False)
        assert [f.evidence["cause"] for f in found if f.code is FindingCode.SLOWDOWN] == ["unknown"] * 3
        assert [f.evidence["kind"] for f in found if f.code is FindingCode.STRAGGLER] == ["cannot_tell"]


def test_nebula_takes_128_tied_with_256() -> None:
    found = findings("nebula-batch", "none")
    (spot,) = [finding for finding in found if finding.code is FindingCode.SWEET_SPOT]
    assert (spot.evidence["train_micro_batch_size_per_gpu"], spot.evidence["tied"]) == (128, [128, 256])
    assert spot.evidence["ratio_to_best"] == pytest.approx(86.57 / 92.8)
    assert codes(found) == {FindingCode.SWEET_SPOT: 1, FindingCode.STRAGGLER: 1}


def test_vector_is_near_ideal_with_its_efficiency_and_noise() -> None:
    found = findings("vector-cifar10-strong")
    (ideal,) = [finding for finding in found if finding.code is FindingCode.NEAR_IDEAL]
    assert ideal.evidence["efficiency"] == pytest.approx(7.76 / 8, abs=1e-3)
    assert ideal.evidence["efficiency_ci95_low"] < 0.93
    assert ideal.evidence["efficiency_ci95_high"] > 1.01
    assert "efficiency 0.97 there (95 % between 0.92 and 1.02), and 0.90 to 1.00 over all sizes" in ideal.message
    assert set(codes(found)) == {
        FindingCode.NEAR_IDEAL,
        FindingCode.ACCURACY_DROP,
        FindingCode.STRAGGLER,
        FindingCode.PRECISION,
    }


def test_vector_learns_less_as_its_global_batch_grows() -> None:
    (drop,) = [f for f in findings("vector-cifar100-strong") if f.code is FindingCode.ACCURACY_DROP]
    assert drop.evidence["drop"] == pytest.approx(0.3024 - 0.2221)
    assert "from 30.2% to 22.2%" in drop.message
