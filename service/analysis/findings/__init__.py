"""What a person can act on, from the data alone.

A rule is a function of the `Subject`; each family of rules is a module here, and `_RULES` is all of them. A rule says
nothing about what lies within the noise: intervals where there are any, and without repeats at least the 5 % that
`service.analysis.noise` asks for. Renaming devices or ranks, another order of rows or another unit of time change what
a finding names, never whether it is found; only PRECISION and a part of SLOWDOWN know devices by their names (for
their peak rates), and say nothing of names that they do not know.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from service.analysis.answer import Analysis
from service.analysis.finding import Finding
from service.analysis.findings.batch import memory_frontier, sweet_spot
from service.analysis.findings.communication import communication_bound
from service.analysis.findings.learning import accuracy_drop
from service.analysis.findings.links import slow_link
from service.analysis.findings.loading import data_bound
from service.analysis.findings.precision import precision
from service.analysis.findings.scaling import baseline_suspect, near_ideal
from service.analysis.findings.slowdown import slowdown
from service.analysis.findings.subject import Subject
from service.analysis.findings.trust import drift, noise_too_high
from service.analysis.findings.workers import mixed_hardware, straggler
from service.analysis.observation import Observation

_RULES: Final[tuple[Callable[[Subject], Iterable[Finding]], ...]] = (
    slowdown,
    straggler,
    slow_link,
    communication_bound,
    data_bound,
    baseline_suspect,
    accuracy_drop,
    noise_too_high,
    drift,
    mixed_hardware,
    sweet_spot,
    near_ideal,
    memory_frontier,
    precision,
)
_FIRST: Final = {"critical": 0, "warning": 1, "info": 2}


def find(observations: Sequence[Observation], analysis: Analysis) -> list[Finding]:
    """The findings of one study, the most severe first. `analysis` is that of the same observations."""
    subject = Subject(sorted(observations, key=lambda one: one.trial), analysis)
    found = [finding for rule in _RULES for finding in rule(subject)]
    return sorted(found, key=lambda finding: _FIRST[finding.severity])
