"""One text for equal data, to compare and to hash."""

import hashlib
import json
from collections.abc import Mapping


def canonical_json(value: object) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal data give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def point_hash(parameters: Mapping[str, object]) -> str:
    """SHA-256 (hex) of a point's resolved parameters: the point's identity within a study and across studies."""
    return hashlib.sha256(canonical_json(dict(parameters)).encode()).hexdigest()
