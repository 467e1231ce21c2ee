"""Compile DeepSpeed's CPU shared-memory collective ahead of the first trial: `python -m trainers.compiled_ops`.

Left to itself DeepSpeed asks torch's extension loader for it in every process: that compiles for half a minute on first
use, and again whenever another ninja is on the PATH (each discards the other's log), with all other trials waiting for
its lock. So it is compiled once, at set-up, into a place of its own, and trials load the finished library or go without
(DeepSpeed uses it for inference only; training goes through gloo in either case). Machines with CUDA do not use it.

Nothing here imports torch, so that preflight checks may ask from any process; the compiling happens in a child process.
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

OP_NAME = "deepspeed_shm_comm"
COMPILE_TIMEOUT_SECONDS = 900  # about 30 s on two idle cores; a loaded machine takes far longer
_COMPILE = "from deepspeed.ops.op_builder import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)"
_HINT = "run `python -m trainers.compiled_ops` (or `make setup`) on this machine"


def is_needed() -> bool:
    """Whether trials on this machine use the op: Linux without an NVIDIA device."""
    return sys.platform == "linux" and not any(Path("/dev").glob("nvidia[0-9]*"))


def library_path() -> Path:
    """Where the compiled op is kept: one place per kind of processor and version of Python, torch and DeepSpeed.

    It is compiled for the processor at hand, and a home directory or an image may be shared by unlike ones.

    Below TORCH_EXTENSIONS_DIR where that is set (an image may carry it), else in the user's cache.

    Raises:
        PackageNotFoundError: torch or DeepSpeed is not installed.
    """
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(root) if root else cache / "vitscale" / "compiled-ops"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    processor = f"{platform.machine()}-{_processor_features()}"
    key = f"{python}-torch{version('torch')}-deepspeed{version('deepspeed')}-{processor}"
    return folder / key / f"{OP_NAME}.so"


def _processor_features() -> str:
    """A short hash of what the processor can do, as Linux lists it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    listed = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(" ".join(sorted(listed.split())).encode()).hexdigest()[:8]


def missing_compiled_op() -> str | None:
    """One line saying what is missing and what to do, or None where nothing is. Compiles nothing."""
    if not is_needed():
        return None
    try:
        library = library_path()
    except PackageNotFoundError as error:
        return f"{error.name} is not installed: install VitScale's dependencies (`make setup`)"
    if library.is_file():
        return None
    compiler = missing_compiler()
    return compiler if compiler else f"DeepSpeed's CPU collective is not compiled yet ({library}): {_HINT}"


def missing_compiler(purpose: str = "DeepSpeed compiles its CPU collective with one") -> str | None:
    """One line where the C++ compiler (CXX, else c++ or g++) is missing, with what it is for."""
    named = os.environ.get("CXX")
    candidates = [named.split()[0]] if named and named.split() else ["c++", "g++"]
    if any(shutil.which(candidate) for candidate in candidates):
        return None
    return (
        f"no C++ compiler ({' or '.join(candidates)}) found: {purpose}. "
        "Install g++ (Debian: apt-get install g++) or set CXX"
    )


def compile_ops() -> str | None:
    """Compile what is missing and load it once. Returns one line that says what went wrong, or None.

    The library is put in place whole, in one move: whoever looks meanwhile sees none or a good one.
    """
    if not is_needed():
        return None
    try:
        library = library_path()
    except PackageNotFoundError:
        return missing_compiled_op()
    if library.is_file():
        return _failure([_loading(library)], "load")
    if no_compiler := missing_compiler():
        return no_compiler
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=library.parent) as scratch:
        # torch puts <root>/<name>/<name>.so where the root is named.
        built = Path(scratch) / OP_NAME / library.name
        problem = _failure([_COMPILE, _loading(built)], "compile or load", {"TORCH_EXTENSIONS_DIR": scratch})
        if problem is None:
            built.replace(library)
    return problem


def load_library(path: Path) -> object:
    """The compiled op as a Python module; torch must be imported before.

    Raises:
        ImportError: the file is no library for this Python and torch.
    """
    spec = importlib.util.spec_from_file_location(OP_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _loading(library: Path) -> str:
    return (
        f"import torch; from pathlib import Path; from trainers.compiled_ops import load_library; "
        f"load_library(Path({str(library)!r}))"
    )


def _failure(programs: list[str], what: str, variables: dict[str, str] | None = None) -> str | None:
    """Run Python programs in child processes, one after the other; one line about the first that fails."""
    # torch looks for ninja on the PATH; it lies beside this Python, whose environment need not be activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    here = f"{Path(__file__).parent.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": here} | (variables or {})
    for program in programs:
        try:
            child = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_SECONDS,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"DeepSpeed's CPU collective did not {what} within {COMPILE_TIMEOUT_SECONDS} s"
        if child.returncode != 0:
            return f"DeepSpeed's CPU collective did not {what}: {_cause(child.stdout + child.stderr)}"
    return None


def _cause(output: str) -> str:
    """The compiler's first error line, else the last line of the child's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if re.search(r"(^|\s)(fatal )?error:", line):
            return line
    return lines[-1] if lines else "no output"


def main() -> int:
    problem = compile_ops()
    if problem:
        print(f"vitscale: {problem}", file=sys.stderr)
        return 2
    print("DeepSpeed's CPU collective is compiled." if is_needed() else "No compiled op is needed on this machine.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
