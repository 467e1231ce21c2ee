import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainers import compiled_ops


@pytest.fixture
def on_a_cpu_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Linux machine without a GPU whose extension folder is empty."""
    monkeypatch.setattr(compiled_ops, "is_needed", lambda: True)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def test_there_is_one_library_for_each_version_of_torch_and_deepspeed(
    on_a_cpu_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = compiled_ops.library_path()
    assert before.is_relative_to(on_a_cpu_machine)
    monkeypatch.setattr(compiled_ops, "version", lambda package: f"99-{package}")
    after = compiled_ops.library_path()
    assert "torch99-torch-deepspeed99-deepspeed" in str(after)
    assert after != before


def test_unlike_processors_that_share_a_folder_have_a_library_each(
    on_a_cpu_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compiled_ops.library_path()
    assert here.parent.parent == on_a_cpu_machine
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\nflags : avx2 fma\n")
    assert compiled_ops.library_path() != here


def test_without_an_extension_folder_the_users_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled_ops.library_path().is_relative_to(tmp_path / "vitscale")


@pytest.mark.usefixtures("on_a_cpu_machine")
def test_what_is_not_compiled_is_told_with_what_to_do() -> None:
    missing = compiled_ops.missing_compiled_op()
    assert missing is not None
    assert "python -m trainers.compiled_ops" in missing
    library = compiled_ops.library_path()
    library.parent.mkdir()
    library.touch()
    assert compiled_ops.missing_compiled_op() is None


@pytest.mark.slow
def test_a_library_that_does_not_load_is_told_in_one_line(on_a_cpu_machine: Path) -> None:
    library = compiled_ops.library_path()
    assert library.is_relative_to(on_a_cpu_machine)
    library.parent.mkdir()
    library.write_bytes(b"not a library")
    problem = compiled_ops.compile_ops()
    assert problem is not None
    assert "did not load: ImportError" in problem
    assert "\n" not in problem


def test_a_machine_with_a_gpu_needs_nothing(on_a_cpu_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_ops, "is_needed", lambda: False)
    assert compiled_ops.missing_compiled_op() is None
    assert compiled_ops.compile_ops() is None
    assert list(on_a_cpu_machine.iterdir()) == []


@pytest.mark.skipif(not compiled_ops.is_needed(), reason="this machine needs no compiled op")
def test_without_a_compiler_there_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    environment = os.environ | {"CXX": "/no/such/compiler", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "trainers.compiled_ops"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no C++ compiler (/no/such/compiler) found" in line
    assert "Install g++" in line


def test_asking_imports_no_torch() -> None:
    code = "import sys, trainers.compiled_ops as c; c.missing_compiled_op(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
