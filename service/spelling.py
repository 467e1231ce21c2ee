"""What a person may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def closest(name: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """Up to `count` candidates that look like `name`, the best first.

    A candidate that has all words of the name is likest (micro_batch_per_gpu -> train_micro_batch_size_per_gpu; by
    letters alone batch_size would be patch_size), then what is spelled alike.
    """
    lowered = name.lower().replace("-", "_")[:200]  # difflib is quadratic
    by_lowered = {candidate.lower(): candidate for candidate in candidates}
    words = {word for word in lowered.split("_") if word}
    containing = [candidate for candidate in by_lowered if words and words <= set(candidate.split("_"))]
    alike = difflib.get_close_matches(lowered, by_lowered, n=count, cutoff=0.72)
    found = dict.fromkeys([*sorted(containing, key=len), *alike])
    return [by_lowered[match] for match in list(found)[:count]]
