"""Lines out of a log's chunks, however it is cut."""

from hypothesis import given
from hypothesis import strategies as st

from service import job_log
from service.job_log import LineSplitter


def split(*chunks: str) -> list[tuple[int, str]]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.rest()


def test_a_line_cut_into_chunks_is_one_line() -> None:
    assert split("one\ntw", "o", "\nthree\n") == [(0, "one"), (1, "two"), (2, "three")]


def test_a_line_without_an_end_waits_for_it() -> None:
    splitter = LineSplitter()
    assert splitter.feed('VITSCALE {"seq"') == []
    assert splitter.feed(": 1}\nnext") == [(0, 'VITSCALE {"seq": 1}')]
    assert splitter.rest() == [(1, "next")]


def test_blank_lines_do_not_count() -> None:
    """Followed live, "\\r" and "\\n" written apart come as two line ends; in a replay as one."""
    assert split("progress\n", "\nevent\n") == split("progress\nevent\n") == [(0, "progress"), (1, "event")]


def test_a_line_that_never_ends_is_cut() -> None:
    lines = split(*["x" * 1024] * (job_log.MAX_LINE_CHARACTERS // 1024 + 10), "\nnext\n")
    assert [len(text) for _, text in lines] == [job_log.MAX_LINE_CHARACTERS, 4]


@given(st.lists(st.text(alphabet="ab \n", max_size=8), max_size=12))
def test_positions_and_lines_do_not_depend_on_the_cutting(chunks: list[str]) -> None:
    whole = "".join(chunks)
    assert split(*chunks) == split(whole)
    assert [text for _, text in split(*chunks)] == [line for line in whole.split("\n") if line.strip()]
    assert [position for position, _ in split(*chunks)] == list(range(len(split(*chunks))))
