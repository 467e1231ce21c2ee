import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.errors import SpecInvalid
from service.job_plan import Placement
from service.plan import MAX_TRIALS, Plan, Refusal, plan
from service.spec import PARAMETER_NAMES, parse_spec
from tests.service.spec_samples import COMPLETE, MINIMAL, changed, without

MICRO = "parameters/train_micro_batch_size_per_gpu"
GLOBAL = "parameters/train_batch_size"


def planned(base: dict[str, Any], *changes: tuple[str, Any], data_roots: tuple[Path, ...] = ()) -> Plan:
    data = base
    for pointer, value in changes:
        data = changed(data, pointer, value)
    return plan(parse_spec(data), data_roots=data_roots)


def only_refusal(base: dict[str, Any], *changes: tuple[str, Any], data_roots: tuple[Path, ...] = ()) -> Refusal:
    refused = planned(base, *changes, data_roots=data_roots).refused
    assert len(refused) == 1, refused
    return refused[0]


def held_global(*changes: tuple[str, Any]) -> dict[str, Any]:
    data = changed(changed(MINIMAL, "scaling/hold", "global_batch"), GLOBAL, {"value": 8})
    for pointer, value in changes:
        data = changed(data, pointer, value)
    return data


class TestTrials:
    def test_parameters_are_complete_resolved_and_in_order(self) -> None:
        trial = planned(MINIMAL).trials[0]
        assert tuple(trial.parameters) == PARAMETER_NAMES
        assert trial.parameters == {
            "model": "vit_tiny_patch16_224",
            "world_size": 1,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "train_batch_size": 4,
            "zero_stage": 0,
            "precision": "fp32",
            "optimizer": "adamw",
            "learning_rate": 1e-4,
            "weight_decay": 0.01,
            "gradient_clipping": 0.0,
            "image_size": 224,
            "patch_size": 16,
            "activation_checkpointing": False,
            "compile": False,
            "placement": "default",
            "dataset": "synthetic",
            "dataset_fraction": 1.0,
            "input_pipeline": "device",
        }
        assert (trial.number, trial.repeat, trial.state, trial.skip_reason) == (1, 0, "pending", None)
        assert trial.placement == Placement()

    def test_the_trial_config_has_everything_from_the_spec(self) -> None:
        complete = planned(COMPLETE, data_roots=(Path("/data"),))
        assert complete.refused == []
        config = complete.trials[0].config
        assert config is not None
        assert config.model_dump() == {
            "model": "vit_tiny_patch16_224",
            "image_size": 32,
            "patch_size": 8,
            "num_classes": 100,
            "activation_checkpointing": False,
            "compile": False,
            "dataset": "cifar10",
            "data_root": "/data/cifar",
            "download": True,
            "dataset_fraction": 0.5,
            "scaling_mode": "strong",
            "input_pipeline": "loader",
            "loader_workers": 1,
            "epochs": 2,
            "seed": 7,
            "world_size": 1,
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 2,
            "train_batch_size": 8,
            "zero_stage": 1,
            "precision": "bf16",
            "optimizer": "sgd",
            "learning_rate": 0.01,
            "weight_decay": 0.0,
            "gradient_clipping": 1.0,
            "deepspeed_overrides": {"zero_optimization": {"overlap_comm": False}},
            "num_threads": 2,
            "measurement": {
                "min_warmup_steps": 1,
                "min_steps": 2,
                "max_steps": 3,
                "max_seconds": 4.5,
                "relative_ci": 0.1,
                "communication": True,
            },
        }

    @pytest.mark.parametrize(
        ("dataset", "num_classes", "expected"),
        [("digits", None, 10), ("synthetic", None, 1000), ("synthetic", 7, 7), ("digits", 1000, 1000)],
    )
    def test_the_head_has_the_datasets_classes_or_those_asked_for(
        self, dataset: str, num_classes: int | None, expected: int
    ) -> None:
        trial = planned(MINIMAL, ("workload/dataset", dataset), ("workload/num_classes", num_classes)).trials[0]
        assert trial.config is not None
        assert trial.config.num_classes == expected

    def test_only_the_dataset_that_needs_a_folder_gets_it(self) -> None:
        data = changed(MINIMAL, "workload", {"data_root": "/data", "download": True})
        data = changed(data, "parameters/dataset", {"values": ["digits", "cifar10"]})
        configs = [trial.config for trial in planned(data, data_roots=(Path("/data"),)).trials]
        assert [(c.data_root, c.download) for c in configs if c is not None] == [(None, False), ("/data", True)]

    def test_repeats_count_on_after_all_points_and_share_their_hash(self) -> None:
        trials = planned(MINIMAL, (MICRO, {"values": [4, 8]}), ("measurement/repeats", 2)).trials
        assert [(t.number, t.repeat, t.parameters["train_micro_batch_size_per_gpu"]) for t in trials] == [
            (1, 0, 4),
            (2, 0, 8),
            (3, 1, 4),
            (4, 1, 8),
        ]
        assert [t.point_hash for t in trials[:2]] == [t.point_hash for t in trials[2:]]

    def test_the_hash_depends_on_the_resolved_point_only(self) -> None:
        implied = planned(MINIMAL).trials[0]
        explicit = planned(MINIMAL, ("parameters/patch_size", {"value": 16}), ("name", "another")).trials[0]
        assert implied.point_hash == explicit.point_hash
        assert len(implied.point_hash) == 64

    def test_the_models_own_patch_size_is_taken_for_each_model(self) -> None:
        models = {"values": ["vit_base_patch16_224", "vit_base_patch32_224"]}
        trials = planned(MINIMAL, ("parameters/model", models)).trials
        assert [trial.parameters["patch_size"] for trial in trials] == [16, 32]


class TestOrder:
    MANY: tuple[str, Any] = (MICRO, {"values": list(range(1, 21))})

    def test_given_is_the_order_of_numbers(self) -> None:
        result = planned(MINIMAL, self.MANY, ("measurement/order", "given"), ("measurement/repeats", 2))
        assert result.order == list(range(1, 41))

    def test_random_is_a_shuffle_of_the_whole_plan_fixed_by_the_seed(self) -> None:
        result = planned(MINIMAL, self.MANY, ("measurement/repeats", 2))
        assert sorted(result.order) == list(range(1, 41))
        assert any(number > 20 for number in result.order[:20])  # repeats are not run one after the other
        assert result.order[:20] != sorted(result.order[:20])
        assert planned(MINIMAL, self.MANY, ("measurement/repeats", 2)).order == result.order
        assert planned(MINIMAL, self.MANY, ("measurement/repeats", 2), ("workload/seed", 1)).order != result.order


class TestBatch:
    def test_hold_micro_batch_grows_the_global_batch(self) -> None:
        data = changed(MINIMAL, "parameters/gradient_accumulation_steps", {"value": 3})
        trials = planned(data, ("parameters/world_size", {"values": [1, 2, 4]})).trials
        assert [trial.parameters["train_batch_size"] for trial in trials] == [12, 24, 48]

    def test_hold_global_batch_derives_the_accumulation(self) -> None:
        trials = planned(held_global(), ("parameters/world_size", {"values": [1, 2]})).trials
        assert [trial.parameters["gradient_accumulation_steps"] for trial in trials] == [2, 1]

    def test_hold_global_batch_derives_the_micro_batch(self) -> None:
        data = changed(without(held_global(), MICRO), "parameters/gradient_accumulation_steps", {"value": 2})
        trials = planned(data, ("parameters/world_size", {"values": [1, 2]})).trials
        assert [trial.parameters["train_micro_batch_size_per_gpu"] for trial in trials] == [4, 2]

    def test_every_point_that_does_not_divide_is_named_with_the_nearest_values(self) -> None:
        result = planned(held_global(), ("parameters/world_size", {"values": [1, 2, 3, 4]}))
        assert [trial.parameters["world_size"] for trial in result.trials] == [1, 2]
        assert [(r.parameters["world_size"], r.pointer, r.code) for r in result.refused] == [
            (3, "/parameters/train_batch_size", "INDIVISIBLE_BATCH"),
            (4, "/parameters/train_batch_size", "INDIVISIBLE_BATCH"),
        ]
        assert result.refused[0].reason == (
            "train_batch_size 8 is no multiple of train_micro_batch_size_per_gpu x world_size = 4 x 3 = 12, "
            "so gradient_accumulation_steps would be no whole number"
        )
        assert "the smallest train_batch_size that fits is 12" in str(result.refused[0].hint)
        between = only_refusal(held_global((GLOBAL, {"value": 30}), ("parameters/world_size", {"value": 3})))
        assert "the nearest train_batch_size values that fit are 24 and 36" in str(between.hint)

    def test_skip_lists_them_as_skipped_and_runs_the_rest(self) -> None:
        result = planned(held_global(), ("parameters/world_size", {"values": [1, 3, 2]}), ("on_indivisible", "skip"))
        assert result.refused == []
        assert [trial.state for trial in result.trials] == ["pending", "skipped", "pending"]
        skipped = result.trials[1]
        assert skipped.config is None
        assert skipped.skip_reason is not None
        assert "4 x 3 = 12" in skipped.skip_reason
        assert skipped.parameters["gradient_accumulation_steps"] is None
        assert sorted(result.order) == [1, 3]

    def test_a_global_batch_beyond_reason_is_refused(self) -> None:
        data = changed(MINIMAL, "parameters/gradient_accumulation_steps", {"value": 2**31 - 1})
        assert only_refusal(data).pointer == "/parameters/train_micro_batch_size_per_gpu"


class TestExclude:
    TWO_BY_TWO: tuple[tuple[str, Any], ...] = (
        ("parameters/world_size", {"values": [1, 2]}),
        ("parameters/zero_stage", {"values": [0, 3]}),
    )

    def test_leaves_out_the_points_that_equal_an_entry_in_all_its_keys(self) -> None:
        result = planned(MINIMAL, *self.TWO_BY_TWO, ("exclude", [{"world_size": 1, "zero_stage": 3}]))
        kept = [(t.parameters["world_size"], t.parameters["zero_stage"]) for t in result.trials]
        assert kept == [(1, 0), (2, 0), (2, 3)]
        assert [trial.number for trial in result.trials] == [1, 2, 3]

    def test_matches_resolved_values(self) -> None:
        result = planned(MINIMAL, *self.TWO_BY_TWO, ("exclude", [{"train_batch_size": 8, "patch_size": 16}]))
        assert {trial.parameters["world_size"] for trial in result.trials} == {1}

    def test_leaves_out_impossible_points_before_they_are_refused(self) -> None:
        data = held_global(("parameters/world_size", {"values": [1, 3]}))
        result = planned(data, ("exclude", [{"world_size": 3}]))
        assert (len(result.trials), result.refused) == (1, [])

    @pytest.mark.parametrize(
        ("entry", "hint"),
        [
            ({"zero_stage": 2}, "zero_stage is never 2 in this study but 0, 3"),
            ({"world_size": "1"}, "world_size is never 1 in this study but 1, 2"),
            ({"activation_checkpointing": 0}, "activation_checkpointing is never 0 in this study but False"),
            ({"world_size": 2, "train_batch_size": 4}, "no point has all of these values together"),
        ],
    )
    def test_an_entry_that_matches_nothing_is_noted(self, entry: dict[str, Any], hint: str) -> None:
        result = planned(MINIMAL, *self.TWO_BY_TWO, ("exclude", [{"zero_stage": 3}, entry]))
        assert (result.refused, len(result.notes)) == ([], 1)
        assert result.notes[0].startswith(f"/exclude/1 matches no point: {hint}")

    def test_a_study_without_a_point_left_is_refused(self) -> None:
        assert only_refusal(MINIMAL, ("exclude", [{"world_size": 1}])).pointer == "/exclude"
        data = held_global(("parameters/world_size", {"value": 3}), ("on_indivisible", "skip"))
        assert only_refusal(data).pointer == "/on_indivisible"


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "pointer", "code", "hint"),
        [
            (
                [("parameters/model", {"value": "vit_bse_patch16_224"})],
                "/parameters/model",
                "UNKNOWN_MODEL",
                "did you mean vit_base_patch16_224",
            ),
            ([("workload/image_size", 33)], "/workload/image_size", "IMAGE_SIZE", "an image_size of 32 or 48 fits"),
            ([("workload/image_size", 8)], "/workload/image_size", "IMAGE_SIZE", "an image_size of 16 fits"),
            (
                [("parameters/image_size", {"value": 100})],
                "/parameters/image_size",
                "IMAGE_SIZE",
                "an image_size of 96 or 112 fits",
            ),
            (
                [("parameters/placement", {"value": "mixd"}), ("placements", {"mixed": {}})],
                "/parameters/placement",
                "UNKNOWN_PLACEMENT",
                "did you mean mixed?",
            ),
            (
                [
                    ("parameters/placement", {"value": "two"}),
                    ("parameters/world_size", {"value": 3}),
                    ("placements", {"two": {"workers": [{"count": 1}, {"count": 1}]}}),
                ],
                "/placements/two/workers",
                "TOO_FEW_WORKERS",
                "list 3 workers or more, or a world size of at most 2",
            ),
            (
                [("workload/dataset", "digits"), ("workload/dataset_fraction", 0.002)],
                "/workload/dataset_fraction",
                "DATASET_FRACTION",
                "dataset_fraction from 0.002774 up, or a global batch of at most 2 images",
            ),
            (
                [
                    ("scaling/mode", "weak"),
                    ("workload/dataset", "digits"),
                    ("parameters/world_size", {"value": 4}),
                    ("workload/dataset_fraction", 0.3),
                ],
                "/workload/dataset_fraction",
                "DATASET_FRACTION",
                "weak scaling takes dataset_fraction per worker: at most 0.25 for 4 workers",
            ),
            (
                [("workload/dataset", "digits"), ("workload/num_classes", 9)],
                "/workload/num_classes",
                "NUM_CLASSES",
                "10 or more, or null for 10",
            ),
            (
                [("scaling/baseline_world_size", 2)],
                "/scaling/baseline_world_size",
                "BASELINE_NOT_IN_STUDY",
                "one of 1, or null",
            ),
            (
                [("workload/epochs", 100_000)],
                "/workload/epochs",
                "EPOCHS_EXCEED_TIMEOUT",
                "raise execution.trial_timeout_seconds",
            ),
            (
                [("deepspeed", {"zero_optimization": {"overlap_comm": True}})],
                "/deepspeed/zero_optimization/overlap_comm",
                "OVERRIDE_NOT_READ",
                "leave the key out",
            ),
        ],
    )
    def test_have_a_pointer_a_code_and_a_hint(
        self, changes: list[tuple[str, Any]], pointer: str, code: str, hint: str
    ) -> None:
        refusal = only_refusal(MINIMAL, *changes)
        assert (refusal.pointer, refusal.code) == (pointer, code)
        assert str(refusal.hint).startswith(hint)

    def test_all_impossible_points_are_named_at_once_and_the_others_planned(self) -> None:
        result = planned(
            MINIMAL,
            ("parameters/image_size", {"values": [32, 33, 34]}),
            ("parameters/model", {"values": ["vit_tiny_patch16_224", "nope"]}),
        )
        assert [trial.parameters["image_size"] for trial in result.trials] == [32]
        assert [(r.parameters["model"], r.parameters["image_size"], r.code) for r in result.refused] == [
            ("vit_tiny_patch16_224", 33, "IMAGE_SIZE"),
            ("vit_tiny_patch16_224", 34, "IMAGE_SIZE"),
            ("nope", 32, "UNKNOWN_MODEL"),
            ("nope", 33, "UNKNOWN_MODEL"),
            ("nope", 34, "UNKNOWN_MODEL"),
        ]

    def test_weak_fractions_may_add_up_to_all_despite_rounding(self) -> None:
        data = changed(MINIMAL, "scaling/mode", "weak")
        result = planned(
            data,
            ("workload/dataset", "digits"),
            ("workload/dataset_fraction", 0.1),
            ("parameters/world_size", {"values": [3, 10, 11]}),
        )
        assert [trial.parameters["world_size"] for trial in result.trials] == [3, 10]

    def test_weak_synthetic_images_never_run_out(self) -> None:
        data = changed(MINIMAL, "scaling/mode", "weak")
        assert planned(data, ("parameters/world_size", {"value": 8})).refused == []

    def test_what_the_paper_ran_is_never_refused_for_time(self) -> None:
        """Five epochs on eight GPUs took 1,200 s there; far faster devices exist."""
        data = changed(MINIMAL, "parameters/model", {"value": "vit_base_patch16_224"})
        for precision in ("fp32", "fp16"):
            changes = [
                ("workload/epochs", 5),
                ("execution/trial_timeout_seconds", 60),
                ("parameters/precision", {"value": precision}),
                ("parameters/world_size", {"value": 8}),
                (MICRO, {"value": 64}),
            ]
            assert planned(data, *changes).refused == []

    def test_epochs_are_refused_where_arithmetic_alone_takes_longer(self) -> None:
        data = changed(MINIMAL, "parameters/model", {"value": "vit_large_patch16_224"})
        refusal = only_refusal(data, ("workload/epochs", 200), (MICRO, {"value": 64}))
        assert refusal.code == "EPOCHS_EXCEED_TIMEOUT"


class TestDataRoot:
    CIFAR: tuple[str, Any] = ("workload/dataset", "cifar10")

    def test_cifar_needs_one(self, tmp_path: Path) -> None:
        refusal = only_refusal(MINIMAL, self.CIFAR, data_roots=(tmp_path,))
        assert (refusal.pointer, refusal.code) == ("/workload/data_root", "DATA_ROOT")
        assert refusal.hint == f"a folder below {tmp_path}"

    def test_below_a_root_is_accepted_whether_it_is_there_or_not(self, tmp_path: Path) -> None:
        for folder in (tmp_path, tmp_path / "cifar" / "not_there"):
            assert (
                planned(MINIMAL, self.CIFAR, ("workload/data_root", str(folder)), data_roots=(tmp_path,)).refused == []
            )

    @pytest.mark.parametrize("folder", ["/etc", "cifar", "{root}/../elsewhere", "{root}x", "{root}/link/below", "~/x"])
    def test_elsewhere_is_refused_links_resolved(self, tmp_path: Path, folder: str) -> None:
        root, outside = tmp_path / "root", tmp_path / "outside"
        root.mkdir()
        outside.mkdir()
        (root / "link").symlink_to(outside)
        refusal = only_refusal(
            MINIMAL, self.CIFAR, ("workload/data_root", folder.format(root=root)), data_roots=(root,)
        )
        assert refusal.code == "DATA_ROOT"

    def test_a_root_that_is_itself_a_link_works(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        root = tmp_path / "root"
        root.symlink_to(tmp_path / "real")
        folder = str(root / "cifar")
        assert planned(MINIMAL, self.CIFAR, ("workload/data_root", folder), data_roots=(root,)).refused == []

    def test_links_in_a_circle_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to(tmp_path / "b")
        (tmp_path / "b").symlink_to(tmp_path / "a")
        refusal = only_refusal(MINIMAL, self.CIFAR, ("workload/data_root", str(tmp_path / "a")), data_roots=(tmp_path,))
        assert refusal.code == "DATA_ROOT"

    def test_without_roots_the_hint_says_how_to_set_them(self) -> None:
        refusal = only_refusal(MINIMAL, self.CIFAR, ("workload/data_root", "/data"))
        assert "VITSCALE_DATA_ROOTS" in str(refusal.hint)


class TestCost:
    def test_the_bound_is_workers_times_timeout_times_attempts(self) -> None:
        result = planned(
            MINIMAL,
            ("parameters/world_size", {"values": [1, 2, 4]}),
            ("measurement/repeats", 2),
            ("execution/trial_timeout_seconds", 100),
            ("execution/retries", 2),
            ("execution/contended_retries", 3),
        )
        assert result.device_seconds_bound == 2 * (1 + 2 + 4) * 100 * (1 + 2 + 3)

    def test_skipped_and_refused_points_cost_nothing(self) -> None:
        data = held_global(("parameters/world_size", {"values": [1, 3]}), ("on_indivisible", "skip"))
        assert planned(data).device_seconds_bound == 900 * (1 + 1 + 1)

    def test_placement_says_what_is_wanted_at_once(self) -> None:
        result = planned(COMPLETE, ("parameters/world_size", {"values": [2, 4]}), data_roots=(Path("/data"),))
        assert result.placement[-1].model_dump() == {
            "placement": "mixed",
            "world_size": 4,
            "strategy": "SPREAD",
            "workers": [
                {"label_selector": {"gpu": "rtx3070"}, "count": 3},
                {"label_selector": {"gpu": "in(p4, t4)"}, "count": 1},
            ],
            "num_cpus_per_worker": 2,
            "num_gpus_per_worker": 1,
            "trials": 32,
        }
        assert [need.world_size for need in result.placement] == [2, 4]


class TestMemory:
    def test_each_trial_to_run_has_the_bytes_of_its_model_states_and_a_skipped_one_has_none(self) -> None:
        result = planned(
            MINIMAL,
            ("parameters/model", {"value": "vit_base_patch16_224"}),
            ("workload/num_classes", 1000),
            ("parameters/world_size", {"values": [1, 4]}),
            ("parameters/zero_stage", {"values": [0, 2]}),
            ("parameters/precision", {"value": "bf16"}),
        )
        held = {
            (trial.parameters["world_size"], trial.parameters["zero_stage"]): trial.memory.total_bytes
            for trial in result.trials
            if trial.memory is not None
        }
        parameters = 86_567_656
        assert held == {
            (1, 0): 16 * parameters,
            (1, 2): 16 * parameters,
            (4, 0): 16 * parameters,
            (4, 2): 2 * parameters + 14 * parameters // 4,
        }

    def test_the_estimate_refuses_nothing(self) -> None:
        result = planned(MINIMAL, ("parameters/model", {"value": "vit_giant_patch14_clip_224"}))
        assert result.refused == []
        assert result.trials[0].memory is not None
        assert result.trials[0].memory.total_bytes > 16e9


class TestCompile:
    def test_the_third_zero_stage_is_refused_with_the_reason_and_the_others_are_not(self) -> None:
        result = planned(
            MINIMAL,
            ("parameters/compile", {"values": [False, True]}),
            ("parameters/zero_stage", {"values": [0, 1, 2, 3]}),
        )
        assert [trial.config.compile for trial in result.trials if trial.config] == [False, True] * 3 + [False]
        (refusal,) = result.refused
        assert (refusal.code, refusal.pointer) == ("COMPILE_NOT_SUPPORTED", "/parameters/compile")
        assert "break the graph" in refusal.reason
        assert (refusal.parameters["zero_stage"], refusal.parameters["compile"]) == (3, True)


@pytest.mark.slow
def test_planning_needs_neither_torch_nor_ray_nor_a_database() -> None:
    heavy = "{'torch', 'ray', 'deepspeed', 'timm', 'numpy', 'sqlalchemy', 'fastapi'}"
    code = f"import sys, service.plan, service.presets; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


class TestSize:
    def test_more_than_the_limit_is_refused_from_the_counts_alone(self) -> None:
        thousand = {"values": list(range(1, 1001))}
        with pytest.raises(SpecInvalid, match=r"1,000,000,000 points \(1000 world_size x 1000 train_micro"):
            planned(
                MINIMAL,
                (MICRO, thousand),
                ("parameters/world_size", thousand),
                ("parameters/gradient_accumulation_steps", thousand),
                ("exclude", [{"world_size": 1}]),
            )

    def test_repeats_count(self) -> None:
        with pytest.raises(SpecInvalid, match="the study has 10,100 trials"):
            planned(MINIMAL, (MICRO, {"values": list(range(1, 102))}), ("measurement/repeats", 100))

    @pytest.mark.slow
    def test_exclusions_count_before_the_limit_does(self) -> None:
        data = changed(MINIMAL, "workload/image_size", 32)
        result = planned(
            data,
            (MICRO, {"values": list(range(1, 101))}),
            ("measurement/repeats", 101),
            ("exclude", [{"train_micro_batch_size_per_gpu": 7}]),
        )
        assert len(result.trials) == 99 * 101

    @pytest.mark.slow
    def test_the_largest_study_is_planned(self) -> None:
        data = changed(MINIMAL, "workload/image_size", 32)
        result = planned(
            data,
            (MICRO, {"values": list(range(1, 201))}),
            ("parameters/world_size", {"values": list(range(1, 51))}),
        )
        assert len(result.trials) == len({trial.point_hash for trial in result.trials}) == MAX_TRIALS
