import random

import pytest

from trainers.config import MeasurementConfig
from trainers.measure.assessment import assess
from trainers.measure.stop_rule import next_window_steps
from trainers.measure.summary import TimingSummary, summarise
from trainers.measure.windows import Window

CONFIG = MeasurementConfig(min_steps=20, max_steps=40, max_seconds=8, relative_ci=0.02)


def window(steps: int, step_seconds: float = 0.1) -> Window:
    return Window(steps * step_seconds, (step_seconds,) * steps)


def noisy(steps: int, spread: float = 0.03, mean: float = 0.1) -> Window:
    generator = random.Random(steps)
    seconds = tuple(generator.uniform(mean - spread, mean + spread) for _ in range(steps))
    return Window(sum(seconds), seconds)


class TestNextWindow:
    def decide(self, *windows: Window, used: float = 0, guess: float | None = 0.1, **changes: float) -> int:
        config = CONFIG.model_copy(update=changes)
        return next_window_steps(config, windows, warmup_seconds=2.0, seconds_used=used, step_seconds_guess=guess)

    def test_a_precise_series_still_gets_its_min_steps(self) -> None:
        assert self.decide() == 10
        assert self.decide(window(10)) == 10
        assert self.decide(window(10), window(10)) == 0
        assert self.decide(window(10), window(10), min_steps=30) == 10

    def test_a_precise_series_is_still_seen_for_nine_twentieths_of_max_seconds(self) -> None:
        assert self.decide(window(10), window(10), max_seconds=9) == 10
        assert self.decide(window(10), window(10), max_seconds=8.88) == 0

    def test_a_noisy_series_goes_on_to_max_steps_exactly(self) -> None:
        assert self.decide(noisy(10), noisy(11)) == 10
        assert self.decide(noisy(10), noisy(11), noisy(14)) == 5
        assert self.decide(noisy(10), noisy(30)) == 0

    def test_a_slowing_series_goes_on(self) -> None:
        assert self.decide(window(10), window(10, 0.103), window(10, 0.106)) == 10

    def test_max_seconds_ends_it_and_a_window_that_does_not_fit_is_not_begun(self) -> None:
        assert self.decide(noisy(10), used=10) == 0
        assert self.decide(noisy(10), used=9.5) == 0
        assert self.decide(noisy(10), used=5) == 10

    def test_what_fits_is_judged_by_the_last_window_where_that_was_slower(self) -> None:
        assert self.decide(noisy(10), noisy(10, mean=0.2), used=5.5) == 10
        assert self.decide(noisy(10), noisy(10, mean=0.3), used=5.5) == 0

    def test_there_is_always_a_first_window_shortened_to_what_fits(self) -> None:
        assert self.decide(used=3, guess=1.0) == 5
        assert self.decide(used=20, guess=1.0) == 1
        assert self.decide(guess=None) == 10
        assert self.decide(max_steps=3) == 3

    def test_windows_grow_to_a_tenth_of_a_long_series(self) -> None:
        many = [noisy(10, spread=0.09)] * 39
        assert self.decide(*many, max_steps=10_000, max_seconds=1000) == 30
        assert self.decide(*many, max_steps=10_000, max_seconds=1000, used=997.9) == 20


class TestAssessment:
    def test_what_is_steady(self) -> None:
        found = assess(CONFIG, [noisy(20, 0.005), noisy(21, 0.005)], warmup_seconds=2)
        assert (found.state, found.flags) == ("steady", [])

    def test_noise_wider_than_asked_for_is_unstable(self) -> None:
        found = assess(CONFIG, [noisy(20), noisy(21)], warmup_seconds=2)
        assert (found.state, found.flags) == ("unstable", ["unstable"])

    def test_a_series_that_slows_to_its_end_is_drifting(self) -> None:
        found = assess(CONFIG, [window(10, 0.1 + 0.004 * number) for number in range(6)], warmup_seconds=0)
        assert (found.state, "drifting" in found.flags) == ("drifting", True)

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_under_four_steps_there_is_no_interval_and_no_verdict(self, steps: int) -> None:
        found = assess(CONFIG, [noisy(steps)], warmup_seconds=1)
        assert (found.state, found.flags, found.interval, found.relative_half_width) == ("unassessed", [], None, None)

    def test_under_twenty_steps_it_is_unstable_or_unassessed(self) -> None:
        assert assess(CONFIG, [noisy(10)], warmup_seconds=1).state == "unstable"
        assert assess(CONFIG, [window(10)], warmup_seconds=1).state == "unassessed"


class TestSummary:
    def summary(self, *windows: Window, config: MeasurementConfig = CONFIG) -> TimingSummary:
        return summarise(32, windows, config, warmup_seconds=2)

    def test_the_interval_is_around_the_mean_and_labelled_where_too_wide(self) -> None:
        summary = self.summary(noisy(20), noisy(21))
        assert summary.measured_steps == 41
        assert summary.interval is not None
        assert summary.step_seconds_ci95_low == summary.step_seconds_mean - summary.interval.half_width
        assert summary.step_seconds_ci95_high == summary.step_seconds_mean + summary.interval.half_width
        assert any("wider than the 2.0% asked for: max_steps or max_seconds ended it" in note for note in summary.notes)

    def test_where_only_the_wander_makes_it_too_wide_that_is_told(self) -> None:
        summary = self.summary(window(20), config=CONFIG.model_copy(update={"relative_ci": 0.005}))
        assert summary.state == "steady"
        assert any("with the allowance for slow wander the interval is 0.7%" in note for note in summary.notes)

    def test_the_start_that_is_cut_off_counts_as_warm_up_and_the_rest_gives_the_rate(self) -> None:
        summary = self.summary(window(10, 0.3), window(10, 0.2), *[window(10)] * 6)
        assert (summary.truncated_steps, summary.truncated_seconds) == (20, pytest.approx(5.0))
        assert (summary.measured_steps, summary.measured_seconds) == (60, pytest.approx(6.0))
        assert summary.images_per_second == pytest.approx(320)
        assert summary.step_seconds_p95 == pytest.approx(0.1)

    def test_skipped_steps_of_the_kept_windows_are_counted(self) -> None:
        slow = Window(3.0, (0.3,) * 10, skipped_steps=4)
        kept = Window(1.0, (0.1,) * 10, skipped_steps=1)
        assert self.summary(slow, *[kept] * 7).skipped_steps == 7

    def test_a_drift_is_told_with_its_size(self) -> None:
        summary = self.summary(*[window(10, 0.1 + 0.004 * number) for number in range(6)])
        assert any(note.startswith("the step time changed by +") for note in summary.notes)

    def test_a_shortened_window_is_told(self) -> None:
        summary = self.summary(window(3))
        assert summary.step_seconds_ci95_low is None
        assert any("3 instead of 10 steps" in note for note in summary.notes)
        assert any("too few for an interval" in note for note in summary.notes)
        assert any("steadiness was not assessed" in note for note in summary.notes)

    def test_what_was_seen_for_a_short_while_only_is_told(self) -> None:
        long = CONFIG.model_copy(update={"max_seconds": 300})
        assert any("only 4 s were seen" in note for note in self.summary(window(20), config=long).notes)
        assert not any("were seen" in note for note in self.summary(window(20)).notes)
