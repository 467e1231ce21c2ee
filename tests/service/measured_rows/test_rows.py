"""Measured rows: what is read, what follows from it, and how each wrong field is told."""

from collections.abc import Sequence
from typing import Any

import pytest

from service.errors import BadRequest
from service.measured_rows import MeasuredStudy, RowsInvalid, read_measured_rows
from service.measured_rows.errors import MAX_ITEMS
from service.measured_rows.runs import parse_devices
from service.spelling import closest

BATCH = "train_micro_batch_size_per_gpu"


def read(text: str, **options: Any) -> MeasuredStudy:
    return read_measured_rows(text, **options)


def table(header: str, *rows: str) -> str:
    return "\n".join([header, *rows, ""])


def wrong(text: str, **options: Any) -> list[tuple[str, str, str | None]]:
    """(where, what, hint) of everything that is wrong."""
    with pytest.raises(RowsInvalid) as caught:
        read_measured_rows(text, **options)
    return [(item.pointer, item.detail, item.hint) for item in caught.value.errors]


class TestARun:
    def test_epochs_are_averaged_and_the_throughput_follows_from_the_steps(self) -> None:
        study = read(
            table(
                f"run,world_size,{BATCH},gradient_accumulation_steps,steps_per_epoch,epoch,epoch_seconds,loss,accuracy",
                "a,2,16,3,100,1,60,2.5,0.1",
                "a,2,16,3,100,2,50,1.5,0.3",
                "a,2,16,3,100,3,40,1.0,0.5",
            )
        )
        (trial,) = study.trials
        assert trial.parameters["train_batch_size"] == 96
        assert (trial.epoch_seconds, trial.epoch_seconds_source) == (50.0, "measured")
        assert trial.epoch_seconds_without_first == 45.0
        assert trial.step_seconds == pytest.approx(0.5)
        assert trial.images_per_second == pytest.approx(96 * 100 / 50)
        assert trial.measured_steps == 300
        assert [(each.epoch, each.epoch_seconds, each.loss) for each in trial.epochs] == [
            (1, 60.0, 2.5),
            (2, 50.0, 1.5),
            (3, 40.0, 1.0),
        ]
        assert [each.images_seen for each in trial.epochs] == [9600] * 3
        assert (trial.loss, trial.accuracy) == (1.0, 0.5)
        assert "images_per_second is train_batch_size x steps_per_epoch / epoch_seconds" in trial.notes[1]

    def test_a_step_time_is_what_the_throughput_comes_from_where_it_is_given(self) -> None:
        rows = table(f"run,world_size,{BATCH},steps_per_epoch,step_seconds,epoch_seconds", "a,1,8,100,0.5,60")
        (trial,) = read(rows).trials
        assert (trial.step_seconds, trial.images_per_second, trial.epoch_seconds) == (0.5, 16.0, 60.0)
        assert "images_per_second is train_batch_size / step_seconds" in trial.notes

    def test_epoch_seconds_follow_from_a_step_time_and_the_steps(self) -> None:
        (trial,) = read(table(f"run,world_size,{BATCH},steps_per_epoch,step_seconds", "a,1,8,100,0.5")).trials
        assert (trial.epoch_seconds, trial.epoch_seconds_source) == (50.0, "derived")
        assert trial.epochs == []

    def test_without_steps_the_epoch_stands_alone(self) -> None:
        (trial,) = read(table(f"run,world_size,{BATCH},epoch_seconds", "a,1,8,50")).trials
        assert (trial.epoch_seconds, trial.step_seconds, trial.images_per_second) == (50.0, None, None)

    def test_ranks_are_averaged_and_kept(self) -> None:
        study = read(
            table(
                f"run,world_size,{BATCH},steps_per_epoch,epoch,rank,device,epoch_seconds,compute_seconds",
                "a,2,8,10,1,0,fast,10,0.4",
                "a,2,8,10,1,1,slow,12,0.9",
                "a,2,8,10,2,0,fast,20,0.6",
                "a,2,8,10,2,1,slow,22,1.1",
            )
        )
        (trial,) = study.trials
        assert [each.epoch_seconds for each in trial.epochs] == [11.0, 21.0]
        assert trial.epoch_seconds == 16.0
        assert trial.compute_seconds == pytest.approx((0.4 + 0.9 + 0.6 + 1.1) / 4)
        assert trial.devices == ["fast", "slow"]
        ranks = [(each.rank, each.device, each.epoch_seconds) for each in trial.ranks]
        assert ranks == [(0, "fast", 15.0), (1, "slow", 17.0)]
        assert [each.step_seconds for each in trial.ranks] == pytest.approx([1.5, 1.7])
        assert [each.compute_seconds for each in trial.ranks] == [0.5, 1.0]

    def test_a_row_without_a_rank_says_what_the_epoch_took(self) -> None:
        study = read(
            table(
                f"run,world_size,{BATCH},steps_per_epoch,epoch,rank,epoch_seconds,compute_seconds,communication_seconds",
                "a,2,8,10,1,,11,,",
                "a,2,8,10,1,0,,0.4,0.6",
            )
        )
        (trial,) = study.trials
        assert trial.epoch_seconds == 11.0
        assert (trial.compute_seconds, trial.communication_seconds) == (None, None)  # one rank is not all
        assert [(each.rank, each.compute_seconds, each.communication_seconds) for each in trial.ranks] == [
            (0, 0.4, 0.6)
        ]
        assert any("known of rank 0 only" in note for note in trial.notes)

    def test_a_missing_rank_is_told(self) -> None:
        rows = table(f"run,world_size,{BATCH},epoch,rank,epoch_seconds", "a,3,8,1,0,10", "a,3,8,1,2,14")
        (trial,) = read(rows).trials
        assert trial.epoch_seconds == 12.0
        assert any("mean over 2 of 3 ranks" in note for note in trial.notes)


class TestBatch:
    @pytest.mark.parametrize(
        ("given", "complete"),
        [
            ((4, 3, None), (4, 3, 24)),
            ((4, None, 24), (4, 3, 24)),
            ((None, 3, 24), (4, 3, 24)),
            ((4, None, None), (4, 1, 8)),
            ((None, None, 24), (None, None, 24)),
            ((4, 3, 24), (4, 3, 24)),
        ],
    )
    def test_the_third_follows_from_two(self, given: Sequence[int | None], complete: Sequence[int | None]) -> None:
        keys = [BATCH, "gradient_accumulation_steps", "train_batch_size"]
        fields = ",".join("" if value is None else str(value) for value in given)
        (trial,) = read(table(f"run,world_size,epoch_seconds,{','.join(keys)}", f"a,2,5,{fields}")).trials
        assert tuple(trial.parameters.get(key) for key in keys) == tuple(complete)
        assert any("taken to be 1" in note for note in trial.notes) == (given == (4, None, None))

    def test_a_contradiction_is_refused_with_the_sum(self) -> None:
        rows = table(
            f"run,world_size,{BATCH},train_batch_size,gradient_accumulation_steps,epoch_seconds", "a,2,4,8,3,5"
        )
        ((where, what, _),) = wrong(rows)
        assert where == "/line/2/train_batch_size"
        assert what.endswith("= 4 x 3 x 2 = 24")

    def test_a_batch_that_does_not_divide_is_refused(self) -> None:
        ((where, what, _),) = wrong(table(f"run,world_size,{BATCH},train_batch_size,epoch_seconds", "a,2,4,12,5"))
        assert where == "/line/2/train_batch_size"
        assert "no multiple" in what

    def test_what_no_whole_number_can_hold_is_refused(self) -> None:
        header = f"run,world_size,{BATCH},gradient_accumulation_steps,steps_per_epoch,epoch_seconds"
        found = wrong(table(header, "a,2,2000000000,2000000000,1,5", "b,1,1000000000,2,1000000,5", "c,1,8,1,1000,5"))
        assert [item[:2] for item in found] == [
            ("/line/2/train_batch_size", "would be 8000000000000000000"),
            (
                "/line/3/steps_per_epoch",
                "1000000 x train_batch_size 2000000000 are 2000000000000000 images in an epoch",
            ),
        ]

    def test_one_is_needed(self) -> None:
        assert wrong(table("run,world_size,epoch_seconds", "a,2,5"))[0][0] == f"/line/2/{BATCH}"


class TestPoints:
    def test_runs_of_one_point_are_its_repeats(self) -> None:
        rows = table(f"run,world_size,{BATCH},epoch_seconds", "a,1,8,50", "b,2,8,30", "c,1,8,52", "d,1,8,54")
        study = read(rows, mode="strong")
        assert [(trial.number, trial.run, trial.repeat) for trial in study.trials] == [
            (1, "a", 0),
            (2, "b", 0),
            (3, "c", 1),
            (4, "d", 2),
        ]
        assert len({trial.point_hash for trial in study.trials}) == 2
        assert study.spec()["measurement"] == {"repeats": 3}
        assert study.spec()["scaling"] == {"mode": "strong", "hold": "micro_batch", "baseline_world_size": None}

    @pytest.mark.parametrize(("column", "values"), [("nodes", ("1", "2")), ("device", ("T4", "P4"))])
    def test_runs_on_other_hardware_are_no_repeats(self, column: str, values: tuple[str, str]) -> None:
        first, second = values
        rows = (f"a,2,8,50,{first}", f"b,2,8,30,{second}")
        ((where, what, hint),) = wrong(table(f"run,world_size,{BATCH},epoch_seconds,{column}", *rows))
        assert where == f"/line/3/{column}"
        assert "run a (line 2)" in what
        assert "placement" in str(hint)
        placed = [f"{row},{place}" for row, place in zip(rows, ("here", "there"), strict=True)]
        study = read(table(f"run,world_size,{BATCH},epoch_seconds,{column},placement", *placed))
        assert [trial.repeat for trial in study.trials] == [0, 0]

    def test_the_spec_has_the_values_that_occur(self) -> None:
        rows = table(f"run,world_size,{BATCH},dataset,epoch_seconds", "a,1,8,cifar10,50", "b,2,8,cifar10,30")
        assert read(rows).spec()["parameters"] == {
            "world_size": {"values": [1, 2]},
            BATCH: {"value": 8},
            "gradient_accumulation_steps": {"value": 1},
            "dataset": {"value": "cifar10"},
        }

    def test_a_global_batch_that_stays_is_what_is_held(self) -> None:
        study = read(table(f"run,world_size,{BATCH},epoch_seconds", "a,1,8,50", "b,2,4,30", "c,4,2,20"))
        assert study.hold == "global_batch"
        assert "train_batch_size" in study.spec()["parameters"]
        assert BATCH not in study.spec()["parameters"]


class TestText:
    def test_a_byte_order_mark_spaces_quotes_and_empty_lines_are_no_matter(self) -> None:
        text = f'\ufeffrun, world_size ,{BATCH},epoch_seconds\r\n\r\n"a, the first", 1,8.0, 5e1\r\n,,,\r\n'
        (trial,) = read(text).trials
        assert (trial.run, trial.epoch_seconds, trial.parameters[BATCH]) == ("a, the first", 50.0, 8)

    def test_columns_are_renamed_and_passed_over(self) -> None:
        rows = table("name,gpus,bs,t,a=b", "a,1,8,50,x")
        renames = ["name=run", "gpus=world_size", f"bs={BATCH}", "t=epoch_seconds", "a=b="]
        assert read(rows, renames=renames).trials[0].epoch_seconds == 50.0

    @pytest.mark.parametrize(
        ("rename", "told"),
        [("gpus", "not theirs=ours"), ("=run", "not theirs=ours"), ("gpus=worldsize", "no column 'worldsize'")],
    )
    def test_what_is_no_rename_is_refused(self, rename: str, told: str) -> None:
        with pytest.raises(BadRequest, match=told):
            read("run\na", renames=[rename])

    def test_an_unknown_column_is_named_with_what_may_be_meant(self) -> None:
        assert closest("epoch_secs", ["epoch_seconds"]) == ["epoch_seconds"]
        ((where, what, hint),) = wrong(table(f"run,world_size,{BATCH},step_seconds,epoch_secs", "a,1,8,1,50"))
        assert (where, what) == ("/line/1/epoch_secs", "unknown column")
        assert str(hint).startswith("did you mean epoch_seconds? map epoch_secs=epoch_seconds")

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("", "empty"),
            ("\n\n", "empty"),
            (f"run,world_size,{BATCH},epoch_seconds\n", "no rows"),
            ('run,world_size\n"a,1\n', "Line 2 is not CSV"),
            ("run;world_size;epoch_seconds\na;1;5", "unknown column"),
            ("world_size,epoch_seconds\n1,5", "the column is missing"),
            ("run,run,world_size\na,b,1", "there twice"),
            (",".join(f"c{number}" for number in range(501)), "has 501 fields: at most 500"),
        ],
    )
    def test_what_is_no_such_table_is_refused(self, text: str, told: str) -> None:
        with pytest.raises(RowsInvalid) as caught:
            read(text)
        assert told in caught.value.detail + "".join(item.detail for item in caught.value.errors)

    @pytest.mark.parametrize(
        ("header", "hint"), [("run,run", "give one of the two another name"), ("run,name", "map name=")]
    )
    def test_a_column_that_is_there_twice_is_told_with_a_way_out_that_works(self, header: str, hint: str) -> None:
        renames = ["name=run"] if "name" in header else []
        found = wrong(table(f"{header},world_size,{BATCH},epoch_seconds", "a,b,1,8,5"), renames=renames)
        assert [item[1] for item in found] == ["the column run is there twice"]
        assert hint in str(found[0][2])

    def test_another_separator_is_recognised(self) -> None:
        assert wrong("run;world_size;epoch_seconds\na;1;5")[0][2] == 'fields are separated by ","'

    def test_a_rename_of_a_column_that_is_not_there_is_told(self) -> None:
        found = wrong(table(f"run,world_size,{BATCH},epoch_seconds", "a,1,8,5"), renames=["gpu=world_size"])
        assert ("/line/1/gpu", "is renamed and not in the header") in [item[:2] for item in found]


class TestFields:
    @pytest.mark.parametrize(
        ("column", "field", "told", "hinted"),
        [
            ("epoch_seconds", "fast", "must be a number of seconds from 1e-9 to 1e9, not 'fast'", ""),
            ("epoch_seconds", "0", "from 1e-9 to 1e9, not 0", ""),
            ("epoch_seconds", "-3", "from 1e-9 to 1e9, not -3", ""),
            ("epoch_seconds", "1e-308", "from 1e-9 to 1e9, not 1e-308", ""),
            ("loss", "1e308", "from -1e30 to 1e30", ""),
            ("epoch_seconds", "nan", "not 'nan'", "leave the field empty"),
            ("epoch_seconds", "inf", "not 'inf'", "leave the field empty"),
            ("epoch_seconds", "1e999", "not '1e999'", ""),
            ("epoch_seconds", "1_000", "not '1_000'", ""),
            ("world_size", "0", "must be 1 to 100000, not 0", ""),
            ("world_size", "1.5", "must be a whole number", ""),
            ("world_size", "٣", "must be a whole number", ""),
            ("zero_stage", "4", "must be 0 to 3, not 4", ""),
            ("precision", "float32", "must be fp32, tf32, bf16, fp16", "did you mean fp32?"),
            ("dataset_fraction", "10", "at most 1, not 10", "10 percent is 0.1"),
            ("accuracy", "57.07", "0 to 1, not 57.07", "57.07 percent is 0.5707"),
            ("epoch", "0", "must be 1 to", "epochs count from 1"),
            ("rank", "2", "is 2; the world size is 2", "ranks are 0 to 1"),
            ("nodes", "3", "3 nodes for 2 workers", "at most 2"),
            ("device", "T4; T4; T4", "names 3 devices for 2 ranks", ""),
            ("compute_seconds", "600", "600 s are more than the whole step's 1 s", "not milliseconds"),
            ("step_seconds", "600", "are more than the epoch's 10 s", "milliseconds"),
            ("run", "", "is empty", "every row needs it"),
        ],
    )
    def test_a_wrong_one_is_named_by_line_and_column(self, column: str, field: str, told: str, hinted: str) -> None:
        good = {"run": "a", "world_size": "2", BATCH: "8", "steps_per_epoch": "10", "epoch_seconds": "10"}
        row = {**good, column: field}
        ((where, what, hint),) = wrong(table(",".join(row), ",".join(row.values())))
        assert where == f"/line/2/{column}"
        assert told in what
        assert hinted in (hint or "")

    def test_a_decimal_comma_is_recognised_and_nothing_else_for_one(self) -> None:
        assert wrong(table(f"run,world_size,{BATCH},epoch_seconds", "a,1,8,1e400"))[0][2] is None
        rows = table(f"run,world_size,{BATCH},epoch_seconds", 'a,1,8,"50,5"')
        assert wrong(rows)[0][2] == "write 50.5"

    def test_all_are_told_at_once(self) -> None:
        rows = table(f"run,world_size,{BATCH},epoch_seconds", "a,x,8,5", "b,1,y,5", "c,1,8,z", "d,1,8", "e,1,8,5")
        assert [item[0] for item in wrong(rows)] == [
            "/line/2/world_size",
            f"/line/3/{BATCH}",
            "/line/4/epoch_seconds",
            "/line/5",
        ]

    def test_what_could_not_be_read_is_not_told_again_as_missing(self) -> None:
        rows = table(
            f"run,world_size,{BATCH},epoch,epoch_seconds", "a,1,8,1,five", "a,1,8,1,5", "b,1,8,1,5", "b,1,8,1,5"
        )
        assert [item[0] for item in wrong(rows)] == ["/line/2/epoch_seconds", "/line/5/epoch"]

    def test_the_list_is_bounded_and_counted(self) -> None:
        rows = [f"r{number},x,8,5" for number in range(MAX_ITEMS + 50)]
        with pytest.raises(RowsInvalid, match=f"{MAX_ITEMS + 50} fields are wrong.*the first {MAX_ITEMS}") as caught:
            read(table(f"run,world_size,{BATCH},epoch_seconds", *rows))
        assert len(caught.value.errors) == MAX_ITEMS


class TestRowsOfOneRun:
    HEADER = f"run,world_size,{BATCH},precision,epoch,rank,epoch_seconds"

    @pytest.mark.parametrize(
        ("second", "where", "told"),
        [
            ("a,2,8,fp32,1,0,5", "/line/3/epoch", "epoch 1, rank 0 is in line 2 already"),
            ("a,2,8,fp16,2,0,5", "/line/3/precision", "is fp16, and fp32 in line 2 of the same run a"),
            ("a,2,8,fp32,,0,5", "/line/3/epoch", "is empty, and given in line 2"),
            ("a,2,8,fp32,2,0,", "/line/3/rank", "nothing is measured of rank 0 here"),
            ("a,2,8,fp32,2,,", "/line/3/epoch_seconds", "no row of epoch 2 of run a"),
        ],
    )
    def test_contradictions_are_refused(self, second: str, where: str, told: str) -> None:
        found = wrong(table(self.HEADER, "a,2,8,fp32,1,0,5", second))
        assert found[0][0] == where
        assert told in found[0][1]

    def test_an_epoch_with_a_step_time_only_needs_the_steps(self) -> None:
        found = wrong(table(f"run,world_size,{BATCH},epoch,step_seconds", "a,2,8,1,5"))
        assert found[0][0] == "/line/2/steps_per_epoch"

    def test_a_rank_has_one_device(self) -> None:
        rows = table(f"run,world_size,{BATCH},epoch,device,epoch_seconds", "a,1,8,1,T4,5", "a,1,8,2,P4,5")
        assert wrong(rows)[0][0] == "/line/3/device"


@pytest.mark.parametrize(
    ("field", "num_ranks", "names"),
    [
        ("T4", 3, ["T4"] * 3),
        ("T4; P4", 2, ["T4", "P4"]),
        ("2 x RTX 3070; P4", 3, ["RTX 3070", "RTX 3070", "P4"]),
        ("3x T4", 3, ["T4"] * 3),
    ],
)
def test_devices_are_listed_by_rank(field: str, num_ranks: int, names: list[str]) -> None:
    assert parse_devices(field, num_ranks) == names


@pytest.mark.parametrize(("field", "num_ranks"), [("2 x T4", 3), ("T4; P4", 3), ("9 x T4", 3), ("T4;", 2), (";", 2)])
def test_a_list_that_does_not_fit_is_refused(field: str, num_ranks: int) -> None:
    with pytest.raises(ValueError, match="device"):
        parse_devices(field, num_ranks)
