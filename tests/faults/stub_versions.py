"""Takes the place of trainers/versions.py in a copy of the code: as if rank 1's node had another torch."""

import os
from collections.abc import Mapping


def installed_versions() -> Mapping[str, str]:
    """As the real one, but for the truth."""
    return {"torch": "2.9.0" if os.environ["RANK"] == "1" else "2.14.1"}
