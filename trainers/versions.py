"""The versions that this process runs on."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

_PACKAGES = ("torch", "deepspeed", "timm", "numpy", "ray")


@cache
def installed_versions() -> MappingProxyType[str, str]:
    """Of Python and of the packages whose versions a measurement depends on, where they are installed."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return MappingProxyType(versions)
