"""The command line: import, extend, and results as Parquet, against a real server."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from api.routes.imports import EXAMPLE_CSV
from tests.api.served import Run, Served, run_to_the_end, sweep

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def rows(nowhere: Path) -> str:
    """A file of measured rows."""
    path = nowhere / "rows.csv"
    path.write_text(EXAMPLE_CSV)
    return str(path)


@pytest.fixture
def finished(here: Served) -> str:
    """The id of a study that is over: world size 1 and 2."""
    with here.client() as client:
        study_id = client.create_study(sweep()).id
    run_to_the_end(here, study_id)
    return study_id


def spec_file(folder: Path, spec: dict[str, Any]) -> str:
    path = folder / "sweep.json"
    path.write_text(json.dumps(spec))
    return str(path)


class TestImport:
    def test_rows_become_a_study_with_results(self, vitscale: Run, rows: str) -> None:
        code, out, err = vitscale("import", rows, "--name", "old", "--mode", "strong", "--tag", "t4")
        assert (code, err) == (0, "")
        study_id = out.split()[1]
        assert out == f"study {study_id} (old): 2 trials imported\n"
        table = vitscale("results", study_id)[1].splitlines()
        assert [line.split()[0] for line in table[1:3]] == ["1", "2"]
        assert "1.93" in table[2]  # 1817.7 / 941.9
        shown = vitscale("show", study_id)[1]
        assert "t4" in shown
        assert "succeeded" in shown

    def test_columns_are_renamed(self, vitscale: Run, rows: str) -> None:
        text = EXAMPLE_CSV.replace("world_size", "gpus").replace("dataset,", "notes,")
        Path(rows).write_text(text)
        arguments = ["import", rows, "--name", "a", "--map", "gpus=world_size", "--map", "notes=", "--json"]
        code, out, _ = vitscale(*arguments)
        assert code == 0
        assert json.loads(out)["spec"]["parameters"]["world_size"] == {"values": [1, 2]}

    def test_each_wrong_field_is_a_line_and_the_exit_code_is_2(self, vitscale: Run, rows: str) -> None:
        text = EXAMPLE_CSV.replace("1817.7", "soon").replace("two-gpus,2", "two-gpus,0")
        Path(rows).write_text(text)
        code, out, err = vitscale("import", rows, "--name", "a")
        assert (code, out) == (2, "")
        assert err.splitlines() == [
            f"vitscale: {rows}#/line/2/epoch_seconds: must be a number of seconds from 1e-9 to 1e9, not 'soon'",
            f"vitscale: {rows}#/line/3/world_size: must be 1 to 100000, not 0",
        ]

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ([], "there is nothing to import"),
            (["rows.csv"], "--name: is missing"),
            (["rows.csv", "--name", "a", "--mode", "fast"], "none, strong or weak"),
            (["rows.csv", "--name", "a", "--map", "gpus"], "--map: 'gpus' is not theirs=ours"),
            (["rows.csv", "--name", "a", "--map", "gpus=worldsize"], "--map: there is no column"),
            (["rows.csv", "--name", " a"], "--name: "),
            (["nowhere.csv", "--name", "a"], "nowhere.csv: there is no such file"),
            (["--reference", "nature"], "there is paper"),
            (["rows.csv", "--reference", "paper"], "leave rows.csv out"),
            (["--reference", "paper", "--name", "a", "--mode", "weak"], "leave --name, --mode out"),
            (["rows.csv", "--name", "a", "--tag", "b", "--tag", ""], "--tag/1: "),
        ],
    )
    @pytest.mark.usefixtures("rows")
    def test_a_mistake_is_one_line_and_exit_code_2(self, vitscale: Run, arguments: list[str], told: str) -> None:
        code, out, err = vitscale("import", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert told in err

    def test_the_papers_studies_are_there_once(self, vitscale: Run) -> None:
        first = vitscale("import", "--reference", "paper")
        assert first[0] == 0
        assert len(first[1].splitlines()) == 5
        assert vitscale("import", "--reference", "paper") == first
        assert len(vitscale("list", "--tag", "reference")[1].splitlines()) == 1 + 5
        assert "ZeRO 0. epoch_seconds" in vitscale("show", first[1].split()[1])[1]  # a line break of its description


class TestExtend:
    def test_more_points_are_queued(self, vitscale: Run, here: Served, nowhere: Path, finished: str) -> None:
        file = spec_file(nowhere, sweep(micro_batches=(4, 8)))
        code, out, _ = vitscale("extend", finished, file)
        assert code == 0
        assert f"study {finished} (sweep): queued, 2 trials added to 2\n" in out
        run_to_the_end(here, finished)
        assert len(vitscale("results", finished, "--format", "csv")[1].splitlines()) == 1 + 4

    def test_what_cannot_be_is_told_with_the_file_and_the_pointer(
        self, vitscale: Run, nowhere: Path, finished: str
    ) -> None:
        file = spec_file(nowhere, sweep(resources={"num_cpus": 2}))
        code, _, err = vitscale("extend", finished, file)
        assert code == 2
        assert err.startswith(f"vitscale: {file}#/resources/num_cpus: num_cpus is 2, and 1 in the study")
        code, _, err = vitscale("extend", finished, spec_file(nowhere, sweep()))
        assert (code, err.count("\n")) == (1, 1)
        assert "it has all points of this specification already" in err


class TestParquet:
    def test_it_goes_into_a_file(self, vitscale: Run, nowhere: Path, finished: str) -> None:
        path = nowhere / "rows.parquet"
        assert vitscale("results", finished, "--format", "parquet", "--output", str(path)) == (0, "", "")
        assert parquet.ParquetFile(path).read().column("images_per_second").to_pylist() == [100.0, 160.0]

    def test_csv_and_json_do_too(self, vitscale: Run, nowhere: Path, finished: str) -> None:
        for form in ("csv", "json"):
            path = nowhere / f"rows.{form}"
            assert vitscale("results", finished, "--format", form, "-o", str(path))[0] == 0
            assert path.read_bytes().decode() == vitscale("results", finished, "--format", form)[1]

    def test_a_table_is_for_the_screen(self, vitscale: Run, finished: str) -> None:
        code, _, err = vitscale("results", finished, "--output", "x.txt")
        assert code == 2
        assert "--format csv --output x.txt" in err
