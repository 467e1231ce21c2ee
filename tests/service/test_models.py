import pytest

from service.models import did_you_mean_model, model_table
from service.spelling import closest


class TestModels:
    def test_vit_base_is_what_its_paper_says(self) -> None:
        facts = model_table()["vit_base_patch16_224"]
        assert (facts.patch_size, facts.image_size) == (16, 224)
        assert (facts.depth, facts.width, facts.heads) == (12, 768, 12)
        assert facts.parameter_count == 86_567_656  # arXiv 2010.11929, table 1: 86 M; 1000 classes

    def test_the_parameter_count_follows_image_patch_and_classes(self) -> None:
        facts = model_table()["vit_base_patch16_224"]
        assert facts.parameter_count_at(224, 16, 1000) == facts.parameter_count
        ten_classes = facts.parameter_count - 990 * (768 + 1)
        assert facts.parameter_count_at(224, 16, 10) == ten_classes
        assert facts.parameter_count_at(384, 16, 1000) == facts.parameter_count + (24**2 - 14**2) * 768
        assert facts.parameter_count_at(224, 8, 1000) == (
            facts.parameter_count + (28**2 - 14**2) * 768 - 3 * (16**2 - 8**2) * 768
        )

    def test_the_families_of_the_design_are_offered(self) -> None:
        for name in (
            "vit_tiny_patch16_224",
            "vit_large_patch16_384",
            "deit_small_patch16_224",
            "deit3_base_patch16_224",
        ):
            assert model_table()[name].name == name

    def test_close_names_are_what_is_hinted_at_for_an_unknown_model(self) -> None:
        assert did_you_mean_model("vit_hug_patch14_224").startswith("did you mean vit_huge_patch14_224")
        assert did_you_mean_model("resnet50").startswith("any VisionTransformer or DeiT of timm")


class TestSpelling:
    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("micro_batch_per_gpu", ["train_micro_batch_size_per_gpu"]),
            ("batch_size", ["train_batch_size"]),
            ("world-size", ["world_size"]),
            ("WorldSize", ["world_size"]),
            ("patch_sise", ["patch_size"]),
            ("elephant", []),
            ("", []),
            ("x" * 100_000, []),
        ],
    )
    def test_finds_what_has_the_same_words_or_nearly_the_same_letters(self, name: str, expected: list[str]) -> None:
        keys = ["train_micro_batch_size_per_gpu", "train_batch_size", "world_size", "patch_size"]
        assert closest(name, keys) == expected
