import json
import math
from typing import Any

import pytest

from service.errors import NotAvailable, SpecInvalid
from service.spec import StudySpec, parse_spec
from tests.service.spec_samples import COMPLETE, MINIMAL, changed, minimal, refused, without

MICRO, ACCUMULATION, GLOBAL = (
    "/parameters/train_micro_batch_size_per_gpu",
    "/parameters/gradient_accumulation_steps",
    "/parameters/train_batch_size",
)


def only_item(data: object) -> tuple[str, str, str | None]:
    _, items = refused(data)
    assert len(items) == 1, items
    return items[0].pointer, items[0].detail, items[0].hint


class TestDefaults:
    def test_a_minimal_spec_has_the_documented_defaults(self) -> None:
        assert minimal().model_dump(mode="json") == {
            "name": "minimal",
            "description": "",
            "tags": [],
            "scaling": {"mode": "none", "hold": "micro_batch", "baseline_world_size": None},
            "workload": {
                "dataset": "synthetic",
                "data_root": None,
                "download": False,
                "dataset_fraction": 1.0,
                "image_size": 224,
                "num_classes": None,
                "input_pipeline": "device",
                "loader_workers": 2,
                "epochs": None,
                "seed": 0,
            },
            "parameters": {
                "model": {"value": "vit_tiny_patch16_224"},
                "world_size": {"value": 1},
                "train_micro_batch_size_per_gpu": {"value": 4},
                "gradient_accumulation_steps": None,
                "train_batch_size": None,
                "zero_stage": {"value": 0},
                "precision": {"value": "fp32"},
                "optimizer": {"value": "adamw"},
                "learning_rate": {"value": 1e-4},
                "weight_decay": {"value": 0.01},
                "gradient_clipping": {"value": 0.0},
                "patch_size": None,
                "activation_checkpointing": {"value": False},
                "compile": {"value": False},
                "placement": {"value": "default"},
                "dataset": None,
                "dataset_fraction": None,
                "image_size": None,
                "input_pipeline": None,
            },
            "placements": {},
            "exclude": [],
            "on_indivisible": "error",
            "resources": {"num_cpus": 1, "num_gpus": "auto"},
            "measurement": {
                "min_warmup_steps": 5,
                "min_steps": 20,
                "max_steps": 400,
                "max_seconds": 300.0,
                "relative_ci": 0.02,
                "repeats": 1,
                "order": "random",
                "communication": False,
            },
            "execution": {
                "isolation": "exclusive",
                "max_concurrent_trials": None,
                "trial_timeout_seconds": 900.0,
                "queue_timeout_seconds": 600.0,
                "retries": 1,
                "contended_retries": 1,
                "max_failed_trials": None,
            },
            "deepspeed": {},
        }

    @pytest.mark.parametrize(
        "data", [MINIMAL, COMPLETE, changed(MINIMAL, "parameters/image_size", {"values": [32, 48]})]
    )
    def test_the_normalised_spec_parses_back_to_the_same(self, data: dict[str, Any]) -> None:
        spec = parse_spec(data)
        stored = json.loads(json.dumps(spec.model_dump(mode="json")))
        assert parse_spec(stored) == spec
        assert parse_spec(stored).model_dump(mode="json") == stored

    def test_the_examples_in_the_schema_are_valid(self) -> None:
        for example in StudySpec.model_json_schema()["examples"]:
            assert parse_spec(example).name == "batch-sweep"

    def test_what_is_given_is_kept(self) -> None:
        dumped = parse_spec(COMPLETE).model_dump(mode="json")
        for section in ("scaling", "workload", "placements", "exclude", "resources", "measurement", "execution"):
            assert dumped[section] == COMPLETE[section]


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("pointer", "hint"),
        [
            ("/worklod", "did you mean workload?"),
            ("/micro_batch_per_gpu", "did you mean train_micro_batch_size_per_gpu (under /parameters)?"),
            ("/parameters/micro_batch_per_gpu", "did you mean train_micro_batch_size_per_gpu?"),
            ("/parameters/batch_size", "did you mean train_batch_size?"),
            ("/parameters/zero", "did you mean zero_stage?"),
            ("/workload/learning_rate", "learning_rate belongs under /parameters"),
            ("/parameters/epochs", "epochs belongs under /workload"),
            ("/measurement/repeat", "did you mean repeats?"),
            ("/scaling/qqq", "allowed here: mode, hold, baseline_world_size"),
        ],
    )
    def test_are_refused_with_their_pointer_and_what_may_have_been_meant(self, pointer: str, hint: str) -> None:
        name = pointer.rsplit("/", 1)[1]
        assert only_item(changed(MINIMAL, pointer, 1)) == (pointer, f"unknown key {name}", hint)

    def test_slashes_and_tildes_are_escaped_in_the_pointer(self) -> None:
        assert only_item({**MINIMAL, "a/b~c": 1})[:2] == ("/a~1b~0c", "unknown key a/b~c")

    def test_deep_inside_placements_and_exclude(self) -> None:
        _, items = refused(
            {
                **COMPLETE,
                "placements": {"mixed": {"workers": [{"cout": 2}], "strateg": "PACK"}},
                "exclude": [{"world_siz": 1}],
            }
        )
        assert {item.pointer: item.hint for item in items} == {
            "/placements/mixed/workers/0/cout": "did you mean count?",
            "/placements/mixed/strateg": "did you mean strategy?",
            "/exclude/0/world_siz": "did you mean world_size?",
        }

    def test_all_are_named_at_once(self) -> None:
        _, items = refused({"nam": "x", "workload": {"x": 1, "y": 2}, "parameters": {"z": 3}})
        assert [item.pointer for item in items] == [
            "/name",
            "/workload/x",
            "/workload/y",
            "/parameters/model",
            "/parameters/z",
            "/nam",
        ]


class TestAxes:
    @pytest.mark.parametrize(
        ("given", "pointer", "detail", "hint"),
        [
            (2, "", "must be an axis: {value: x} or {values: [x, y]}, not 2", "write {value: 2}"),
            ([1, 2], "", "must be an axis: {value: x} or {values: [x, y]}, not [1,2]", "write {values: [1,2]}"),
            (
                None,
                "",
                "must be an axis: {value: x} or {values: [x, y]}, not null",
                "leave the key out for its default",
            ),
            ({"vaules": [1]}, "/vaules", "unknown key vaules", "did you mean values?"),
            (
                {"value": 1, "values": [1]},
                "/value",
                "give either value or values, not both",
                "write {value: x} or {values: [x, y]}",
            ),
            ({"values": []}, "/values", "must have at least 1 entry", None),
            ({"values": 3}, "/values", "must be a list, not 3", "write [3]"),
            (
                {"values": [1, 2, 1]},
                "/values",
                "1 is given twice",
                "name each value once; repeats are measurement.repeats",
            ),
            ({"value": 0}, "/value", "must be at least 1, not 0", None),
            ({"value": True}, "/value", "must be a whole number, not true", None),
            ({"value": 2.0}, "/value", "must be a whole number, not 2.0", "write 2"),
            (
                {"value": "2"},
                "/value",
                'must be a whole number, not the text "2"',
                "write 2 without quotes and underscores",
            ),
            ({"values": [1, None]}, "/values/1", "must be a whole number, not null", None),
        ],
    )
    def test_that_are_none_are_refused(self, given: object, pointer: str, detail: str, hint: str | None) -> None:
        data = changed(MINIMAL, "parameters/world_size", given)
        assert only_item(data) == (f"/parameters/world_size{pointer}", detail, hint)

    def test_one_and_true_are_different_values_and_one_and_1_0_are_not(self) -> None:
        assert only_item(changed(MINIMAL, "parameters/learning_rate", {"values": [1, 1.0]}))[1] == "1.0 is given twice"
        spec = minimal("parameters/activation_checkpointing", {"values": [True, False]})
        assert spec.parameters.activation_checkpointing.all == [True, False]


class TestValues:
    @pytest.mark.parametrize(
        ("pointer", "value", "detail", "hint"),
        [
            ("name", "", "must have at least 1 character", None),
            ("name", "x" * 101, "must have at most 100 characters", None),
            ("name", " x", "must not begin or end with a space", 'write "x"'),
            ("name", "a\nb", "must not hold the control character U+000A", None),
            ("name", 5, "must be text, not 5", 'write it in quotes: "5"'),
            ("tags", "a", 'must be a list, not the text "a"', 'write ["a"]'),
            ("workload", None, "must be a mapping, not null", "leave the key out for its defaults"),
            ("workload", [], "must be a mapping, not a list", None),
            ("workload/dataset", "cifar", None, "did you mean cifar10?"),
            ("workload/dataset_fraction", 0, "must be more than 0, not 0", None),
            ("workload/dataset_fraction", 1.5, "must be at most 1, not 1.5", None),
            ("workload/dataset_fraction", math.nan, "must be a finite number, not nan", None),
            ("workload/epochs", 0, "must be at least 1, not 0", None),
            ("workload/download", "yes", 'must be true or false, not the text "yes"', "write true, without quotes"),
            ("workload/download", 1, "must be true or false, not 1", "write true or false"),
            ("measurement/relative_ci", 1, "must be less than 1, not 1", None),
            ("measurement/max_seconds", math.inf, "must be a finite number, not inf", None),
            ("execution/trial_timeout_seconds", 0, "must be more than 0, not 0", None),
            ("execution/trial_timeout_seconds", True, "must be a number, not true", None),
            ("execution/isolation", "exclusve", None, "did you mean exclusive?"),
            ("resources/num_cpus", 0, "must be at least 1, not 0", None),
            ("resources/num_gpus", True, "must be auto or a whole number from 0 up", "write auto, 0 or 1"),
            ("placements/mixed/workers/0/count", 0, "must be at least 1, not 0", None),
            (
                "placements/mixed/workers/0/label_selector/gpu",
                3070,
                "must be text, not 3070",
                'write it in quotes: "3070"',
            ),
            ("exclude/0/world_size", [1], "must be one value", "write one entry of exclude per combination"),
            ("exclude/0", {}, "must have at least 1 entry", None),
            (
                "placements/a b",
                {},
                'the name "a b" is not valid',
                "1 to 63 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
            ),
            (
                "parameters/placement/value",
                "",
                'the name "" is not valid',
                "1 to 63 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
            ),
        ],
    )
    def test_out_of_range_or_of_another_type_are_refused(
        self, pointer: str, value: object, detail: str | None, hint: str | None
    ) -> None:
        found = only_item(changed(COMPLETE, pointer, value))
        assert found[0] == f"/{pointer}"
        assert detail is None or found[1] == detail
        assert found[2] == hint

    def test_a_fraction_of_a_gpu_is_refused_with_the_reason(self) -> None:
        pointer, detail, hint = only_item(changed(MINIMAL, "resources/num_gpus", 0.5))
        assert (pointer, hint) == ("/resources/num_gpus", "write 1, or auto")
        assert "workers that share a GPU would measure each other" in detail

    @pytest.mark.parametrize("data", [None, [], "x", 3])
    def test_data_that_is_no_mapping_is_refused(self, data: object) -> None:
        assert only_item(data)[0] == ""

    @pytest.mark.parametrize("pointer", ["name", "parameters", "parameters/model"])
    def test_the_required_keys_are_named(self, pointer: str) -> None:
        found, detail, hint = only_item(without(MINIMAL, pointer))
        assert found == f"/{pointer}"
        assert detail == f"the key {pointer.split('/')[-1]} is required"
        assert hint is not None

    @pytest.mark.parametrize(
        ("selector", "pointer"),
        [
            ({"gpu": "a b"}, "gpu"),
            ({"gpu": "in()"}, "gpu"),
            ({"-gpu": "x"}, "-gpu"),
            ({"example.com/gpu": "!in(a, b)", "x": "!!y"}, "x"),
        ],
    )
    def test_labels_that_ray_does_not_know_are_refused(self, selector: dict[str, str], pointer: str) -> None:
        data = changed(COMPLETE, "placements/mixed/workers/0/label_selector", selector)
        assert only_item(data)[0] == f"/placements/mixed/workers/0/label_selector/{pointer}"


class TestBatchKeys:
    """Two of the three are given, by the rule of `scaling.hold`; anything else is refused."""

    @pytest.mark.parametrize(
        ("hold", "given", "pointer"),
        [
            ("micro_batch", [], MICRO),
            ("micro_batch", [ACCUMULATION], MICRO),
            ("micro_batch", [MICRO, GLOBAL], GLOBAL),
            ("micro_batch", [MICRO, ACCUMULATION, GLOBAL], GLOBAL),
            ("global_batch", [MICRO], GLOBAL),
            ("global_batch", [GLOBAL], MICRO),
            ("global_batch", [MICRO, ACCUMULATION, GLOBAL], ACCUMULATION),
        ],
    )
    def test_another_pair_or_all_three_are_refused(self, hold: str, given: list[str], pointer: str) -> None:
        data = changed(without(MINIMAL, MICRO), "scaling", {"hold": hold})
        for key in given:
            data = changed(data, key, {"value": 8})
        assert only_item(data)[0] == pointer

    def test_global_batch_and_accumulation_under_hold_micro_batch_name_both(self) -> None:
        data = changed(changed(without(MINIMAL, MICRO), GLOBAL, {"value": 8}), ACCUMULATION, {"value": 2})
        _, items = refused(data)
        assert [item.pointer for item in items] == [GLOBAL, MICRO]

    @pytest.mark.parametrize(
        ("hold", "given"),
        [
            ("micro_batch", [MICRO]),
            ("micro_batch", [MICRO, ACCUMULATION]),
            ("global_batch", [GLOBAL, MICRO]),
            ("global_batch", [GLOBAL, ACCUMULATION]),
        ],
    )
    def test_the_right_pairs_are_accepted(self, hold: str, given: list[str]) -> None:
        data = changed(without(MINIMAL, MICRO), "scaling", {"hold": hold})
        for key in given:
            data = changed(data, key, {"value": 8})
        assert parse_spec(data).scaling.hold == hold


class TestContradictions:
    @pytest.mark.parametrize("key", ["dataset", "dataset_fraction", "image_size", "input_pipeline"])
    def test_a_key_under_workload_and_as_an_axis_is_refused_at_both_places(self, key: str) -> None:
        value = getattr(minimal().workload, key)
        data = changed(changed(MINIMAL, f"workload/{key}", value), f"parameters/{key}", {"value": value})
        _, items = refused(data)
        assert [item.pointer for item in items] == [f"/workload/{key}", f"/parameters/{key}"]

    @pytest.mark.parametrize(
        ("pointer", "value", "blamed"),
        [
            ("workload/dataset", None, "/workload/dataset"),
            ("measurement/min_steps", 401, "/measurement/min_steps"),
            ("execution/max_concurrent_trials", 2, "/execution/max_concurrent_trials"),
            ("workload/data_root", "/data", "/workload/data_root"),
            ("workload/download", True, "/workload/download"),
        ],
    )
    def test_are_refused(self, pointer: str, value: object, blamed: str) -> None:
        code, items = refused(changed(MINIMAL, pointer, value))
        assert code == "SPEC_INVALID"
        assert [item.pointer for item in items] == [blamed]


class TestDeepSpeedOverrides:
    @pytest.mark.parametrize(
        ("overrides", "pointer", "hint"),
        [
            ({"train_batch_size": 4}, "/deepspeed/train_batch_size", "set train_batch_size under /parameters"),
            (
                {"micro_batch_per_gpu": 4},
                "/deepspeed/micro_batch_per_gpu",
                "did you mean train_micro_batch_size_per_gpu (under /parameters)?",
            ),
            (
                {"zero_optimization": {"stage": 3}},
                "/deepspeed/zero_optimization/stage",
                "set zero_stage under /parameters",
            ),
            (
                {"zero_optimization": {"overlap_com": True}},
                "/deepspeed/zero_optimization/overlap_com",
                "did you mean overlap_comm?",
            ),
            (
                {"zero_optimization": {"reduce_bucket_size": "auto"}},
                "/deepspeed/zero_optimization/reduce_bucket_size",
                "write the value itself, or leave the key out for DeepSpeed's default",
            ),
        ],
    )
    def test_outside_the_allow_list_are_refused(self, overrides: dict[str, Any], pointer: str, hint: str) -> None:
        found, _, given_hint = only_item({**MINIMAL, "deepspeed": overrides})
        assert (found, given_hint) == (pointer, hint)

    @pytest.mark.parametrize("key", ["timers", "wall_clock_breakdown", "tensorboard", "comms_logger", "aio", "auto"])
    def test_timers_paths_and_the_like_are_refused(self, key: str) -> None:
        assert only_item({**MINIMAL, "deepspeed": {key: "auto"}})[0] == f"/deepspeed/{key}"


class TestNotAvailable:
    @pytest.mark.parametrize(
        ("pointer", "value"),
        [
            ("execution/isolation", "node"),
            ("workload/dataset", "image_folder"),
            ("parameters/dataset", {"values": ["digits", "image_folder"]}),
        ],
    )
    def test_what_is_documented_but_not_done_yet_is_refused_with_its_own_code(
        self, pointer: str, value: object
    ) -> None:
        code, items = refused(changed(MINIMAL, pointer, value))
        assert code == NotAvailable.code
        assert [item.pointer for item in items] == [f"/{pointer}"]

    def test_what_is_wrong_comes_first(self) -> None:
        data = changed(changed(MINIMAL, "execution/isolation", "node"), "workload/x", 1)
        assert refused(data)[0] == SpecInvalid.code
