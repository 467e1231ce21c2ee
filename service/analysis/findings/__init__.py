"""What a person can act on, from the data alone."""

from collections.abc import Sequence

from service.analysis.answer import Analysis, Finding
from service.analysis.observation import Observation


def find(observations: Sequence[Observation], analysis: Analysis) -> list[Finding]:  # noqa: ARG001
    """The findings of one study, the most severe first."""
    return []
