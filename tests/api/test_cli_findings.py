"""Findings as they are printed."""

import pytest

from api.cli.findings import write_findings
from service.analysis.finding import Finding, FindingCode


def finding(message: str) -> Finding:
    return Finding(code=FindingCode.DRIFT, severity="warning", message=message, evidence={"trials": [1]})


def test_piped_it_is_one_line_each_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    write_findings([finding("long " * 60), finding("[red]names\x1b[31m are not ours")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Findings:"
    assert lines[1].rstrip() == ("warning  DRIFT: " + "long " * 60).rstrip()
    assert lines[2] == "warning  DRIFT: [red]names are not ours"
    assert len(lines) == 3


def test_none_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write_findings([])
    assert capsys.readouterr().out == "Findings: none.\n"


def test_a_terminal_gets_wrapped_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "60", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    write_findings([finding("long " * 60)])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 60 for line in lines[2:])
    assert len(lines) > 5
