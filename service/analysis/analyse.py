"""The whole analysis of one study: observations in, answer out."""

from collections.abc import Sequence

from service.analysis import findings
from service.analysis.answer import Analysis, AnalysisOptions
from service.analysis.batch_size import batch_sizes
from service.analysis.costs import costs
from service.analysis.forecasts import with_forecasts
from service.analysis.observation import Observation
from service.analysis.points import study_points
from service.analysis.series import ScalingAsked, differing, point_groups, series_answer, side_by_side


def analyse(
    observations: Sequence[Observation], asked: ScalingAsked, options: AnalysisOptions | None = None
) -> Analysis:
    """What the trials say together, in whatever order they come.

    Args:
        asked: the mode, what is held, the baseline.
        options: thresholds, and world sizes to forecast.
    """
    options = options or AnalysisOptions()
    ordered = sorted(observations, key=lambda one: one.trial)
    points = study_points(ordered, is_weak=asked.mode == "weak")
    groups = point_groups(points, asked)
    distinguishing = differing([group.fixed for group in groups])
    has_results = any(point.is_measured for point in points)
    analysis = Analysis(
        options=options,
        series=[with_forecasts(series_answer(group, asked, distinguishing), group, options) for group in groups]
        if has_results
        else [],
        side_by_side=side_by_side(groups),
        batch_size=batch_sizes(points, asked, options.sweet_spot_ratio),
        costs=costs(groups, asked.mode),
        findings=[],
        notes=[] if has_results else ["No trial has a result yet."],
    )
    return analysis.model_copy(update={"findings": findings.find(ordered, analysis)})
