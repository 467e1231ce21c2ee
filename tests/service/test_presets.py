from pathlib import Path

import pytest

from service.errors import NotFound
from service.plan import Plan, plan
from service.presets import preset_names, preset_text
from service.spec import load_spec_text, parse_spec

PAPER = ["nebula-batch-sweep", "vector-strong", "vector-weak"]
# Five epochs on the slowest point of each, as the paper's figures 6, 8 and 9 print their mean seconds.
SLOWEST_EPOCH_SECONDS = {"nebula-batch-sweep": 276.31, "vector-strong": 1817.65, "vector-weak": 204.96}


def planned(name: str) -> Plan:
    return plan(parse_spec(load_spec_text(preset_text(name), "yaml")), data_roots=[Path("/data")])


def test_there_are_the_demo_and_the_papers_studies() -> None:
    assert preset_names() == ["communication-share", "demo", *PAPER]


@pytest.mark.parametrize("name", ["communication-share", "demo", *PAPER])
class TestEach:
    def test_is_planned_in_full(self, name: str) -> None:
        assert planned(name).refused == []
        assert all(trial.state == "pending" for trial in planned(name).trials)

    def test_has_its_own_name_and_says_where_it_comes_from_and_what_to_change(self, name: str) -> None:
        text = preset_text(name)
        assert parse_spec(load_spec_text(text, "yaml")).name == name
        assert text.startswith("# ")
        assert "# To change: " in text


def test_an_unknown_preset_is_not_found_and_the_closest_named() -> None:
    with pytest.raises(NotFound, match="did you mean vector-weak"):
        preset_text("vector-wek")
    with pytest.raises(
        NotFound, match="there are communication-share, demo, nebula-batch-sweep, vector-strong, vector-weak"
    ):
        preset_text("../settings")


class TestDemo:
    def test_is_six_short_trials_on_real_images(self) -> None:
        trials = planned("demo").trials
        points = [(t.parameters["world_size"], t.parameters["train_micro_batch_size_per_gpu"]) for t in trials]
        assert points == [(1, 4), (1, 16), (1, 64), (2, 4), (2, 16), (2, 64)]
        for trial in trials:
            config = trial.config
            assert config is not None
            assert (config.model, config.image_size, config.dataset) == ("vit_tiny_patch16_224", 32, "digits")
            assert config.patch_size in {4, 8}

    def test_fits_three_minutes_at_twelve_seconds_around_each_measurement(self) -> None:
        configs = [trial.config for trial in planned("demo").trials]
        assert sum(12 + config.measurement.max_seconds for config in configs if config is not None) < 180


class TestCommunicationShare:
    def test_is_a_line_over_micro_batch_for_each_accumulation_at_two_workers(self) -> None:
        lines: dict[int, list[int]] = {}
        for trial in planned("communication-share").trials:
            config = trial.config
            assert config is not None
            assert (config.world_size, config.zero_stage, config.measurement.communication) == (2, 0, True)
            lines.setdefault(config.gradient_accumulation_steps, []).append(config.train_micro_batch_size_per_gpu)
        assert lines == {1: [2, 4, 8, 16, 32], 4: [2, 4, 8, 16], 16: [2, 4]}


@pytest.mark.parametrize("name", PAPER)
class TestThePapers:
    def test_model_images_and_optimizer_are_the_papers(self, name: str) -> None:
        for trial in planned(name).trials:
            config = trial.config
            assert config is not None
            assert (config.model, config.patch_size, config.num_classes) == ("vit_base_patch16_224", 16, 1000)
            assert (config.dataset, config.image_size, config.epochs) == ("cifar10", 224, 5)
            assert (config.optimizer, config.learning_rate) == ("adamw", 1e-4)
            assert (config.zero_stage, config.gradient_accumulation_steps) == (0, 1)

    def test_the_timeout_leaves_half_as_much_again_as_the_slowest_point_took(self, name: str) -> None:
        spec = parse_spec(load_spec_text(preset_text(name), "yaml"))
        assert spec.execution.trial_timeout_seconds > 1.5 * 5 * SLOWEST_EPOCH_SECONDS[name]


class TestSweptPoints:
    def test_nebula_is_figure_6(self) -> None:
        points = {
            (t.parameters["world_size"], t.parameters["train_micro_batch_size_per_gpu"], t.parameters["precision"])
            for t in planned("nebula-batch-sweep").trials
        }
        assert points == {(gpus, batch, "fp16") for gpus in (1, 2) for batch in (16, 32, 64, 128, 256)}

    @pytest.mark.parametrize(
        ("name", "mode", "fraction"), [("vector-strong", "strong", 1.0), ("vector-weak", "weak", 0.1)]
    )
    def test_vector_is_one_to_eight_gpus_at_batch_64(self, name: str, mode: str, fraction: float) -> None:
        for world_size, trial in enumerate(planned(name).trials, start=1):
            config = trial.config
            assert config is not None
            assert (config.world_size, config.train_batch_size) == (world_size, 64 * world_size)
            assert (config.scaling_mode, config.dataset_fraction, config.precision) == (mode, fraction, "fp32")
