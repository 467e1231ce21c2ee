import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainers.data.catalogue import DATASETS
from trainers.data.cifar import load_cifar
from trainers.data.digits import load_digits
from trainers.data.image_set import DataError
from trainers.data.restricted_pickle import UnsafePickle, load_plain_pickle
from trainers.data.synthetic import make_synthetic


def write_cifar10(root: Path, per_file: int = 4, protocol: int = 2) -> None:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        content = {
            "data": generator.integers(0, 256, (per_file, 3072), dtype=np.uint8),
            "labels": [int(label) for label in generator.integers(0, 10, per_file)],
            "batch_label": name,
            "filenames": [f"{name}_{i}.png" for i in range(per_file)],
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


class Malicious:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


class TestRestrictedPickle:
    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_reads_arrays_bytes_and_containers_of_every_protocol(self, tmp_path: Path, protocol: int) -> None:
        content = {
            "array": np.arange(6, dtype=np.uint8).reshape(2, 3),
            "floats": np.linspace(0, 1, 3),
            "bytes": b"\x00\xff",
            "empty": b"",
            "list": [1, 2.5, "three", None, True],
            "tuple": (1, 2),
        }
        path = tmp_path / "plain"
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        read = load_plain_pickle(path)
        assert np.array_equal(read.pop("array"), content.pop("array"))
        assert np.array_equal(read.pop("floats"), content.pop("floats"))
        assert read == content

    def test_reads_what_python_2_wrote_as_text(self, tmp_path: Path) -> None:
        path = tmp_path / "python2"
        path.write_bytes(b"(dp0\nS'labels'\np1\n(lp2\nI3\naI4\nas.")
        assert load_plain_pickle(path) == {"labels": [3, 4]}

    @pytest.mark.parametrize(
        "payload",
        [
            Malicious(os.system, "touch owned"),
            Malicious(eval, "open('owned', 'w')"),
            Malicious(getattr, "x", "upper"),
            Malicious(np.load, "owned"),
            np.array([Malicious(os.system, "touch owned")], dtype=object),
            Malicious(bytes, 10**12),
            Malicious(np.ndarray, (1 << 40,)),
            Malicious(np.dtype, "O"),
            np.ndarray,
            np.zeros(2, dtype=[("a", "u1")]),
            {1, 2},
            1j,
        ],
        ids=[
            "system",
            "eval",
            "getattr",
            "np.load",
            "object array",
            "huge bytes",
            "huge array",
            "object type",
            "bare class",
            "record array",
            "set",
            "complex",
        ],
    )
    def test_calls_nothing_that_a_pickle_names(
        self, tmp_path: Path, payload: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "bad"
        path.write_bytes(pickle.dumps({"data": payload}))
        with pytest.raises(UnsafePickle, match="bad"):
            load_plain_pickle(path)
        assert not (tmp_path / "owned").exists()

    def test_a_list_that_contains_itself_is_refused(self, tmp_path: Path) -> None:
        endless: list[Any] = []
        endless.append(endless)
        path = tmp_path / "endless"
        path.write_bytes(pickle.dumps(endless))
        with pytest.raises(UnsafePickle, match="endless"):
            load_plain_pickle(path)

    @pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1] * 100)[:40]])
    def test_a_truncated_or_foreign_file_is_named(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "broken"
        path.write_bytes(content)
        with pytest.raises(UnsafePickle, match="broken"):
            load_plain_pickle(path)


class TestCifar:
    @pytest.mark.parametrize("protocol", [2, 5])
    def test_reads_torchvisions_layout(self, tmp_path: Path, protocol: int) -> None:
        write_cifar10(tmp_path, protocol=protocol)
        train, test = load_cifar("cifar10", str(tmp_path), download=False)
        assert train.images.shape == (20, 3, 32, 32)
        assert test.images.shape == (4, 3, 32, 32)
        stored = pickle.loads((tmp_path / "cifar-10-batches-py" / "data_batch_1").read_bytes())
        assert np.array_equal(train.images[0].reshape(-1), stored["data"][0])
        assert train.labels[:4].tolist() == stored["labels"]

    @pytest.mark.slow
    def test_agrees_with_torchvision(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from torchvision.datasets import CIFAR10

        write_cifar10(tmp_path)
        monkeypatch.setattr(CIFAR10, "_check_integrity", lambda _: True)
        monkeypatch.setattr(CIFAR10, "_load_meta", lambda _: None)
        theirs = CIFAR10(str(tmp_path), train=True)
        ours, _ = load_cifar("cifar10", str(tmp_path), download=False)
        assert np.array_equal(ours.images.transpose(0, 2, 3, 1), theirs.data)
        assert ours.labels.tolist() == theirs.targets

    def test_a_linked_root_is_followed(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path / "real")
        (tmp_path / "link").symlink_to(tmp_path / "real")
        train, _ = load_cifar("cifar10", str(tmp_path / "link"), download=False)
        assert len(train) == 20

    def test_a_file_that_leads_out_of_the_root_is_refused(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        write_cifar10(root)
        file = root / "cifar-10-batches-py" / "test_batch"
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DataError, match="leads out of the data root"):
            load_cifar("cifar10", str(root), download=False)

    def test_what_is_missing_is_named_with_what_would_be_right(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cifar100 needs data_root"):
            load_cifar("cifar100", None, download=False)
        with pytest.raises(DataError, match="no folder on this worker"):
            load_cifar("cifar100", str(tmp_path / "nowhere"), download=False)
        with pytest.raises(DataError, match=r"train is missing: put cifar100 there .* or set download: true"):
            load_cifar("cifar100", str(tmp_path), download=False)

    def test_content_that_is_not_cifar_is_refused(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path)
        file = tmp_path / "cifar-10-batches-py" / "test_batch"
        for content, complaint in [
            ([1, 2], "must be an array"),
            ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "uint8"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 labels"),
            ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]}, "from 0 to 9"),
        ]:
            file.write_bytes(pickle.dumps(content))
            with pytest.raises(DataError, match=complaint):
                load_cifar("cifar10", str(tmp_path), download=False)

    def test_what_is_there_is_not_downloaded_again(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path)
        train, _ = load_cifar("cifar10", str(tmp_path), download=True)
        assert len(train) == 20
        assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-py"]


class TestDigits:
    def test_holds_1797_real_images_a_fifth_of_each_class_held_out(self) -> None:
        train, held_out = load_digits()
        assert (len(train), len(held_out)) == (DATASETS["digits"].num_train, DATASETS["digits"].num_eval)
        assert len(train) + len(held_out) == 1797
        assert np.bincount(held_out.labels).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]

    @pytest.mark.slow
    def test_agrees_with_scikit_learn(self) -> None:
        from sklearn.datasets import load_digits as theirs

        bunch = theirs()
        train, held_out = load_digits()
        assert train.images[0, 0].tolist() == np.minimum(bunch.images[0] * 16, 255).tolist()
        assert sorted([*train.labels, *held_out.labels]) == sorted(bunch.target)

    def test_no_image_is_in_both_parts_by_place(self) -> None:
        train, held_out = load_digits()
        assert train.images.dtype == held_out.images.dtype == np.uint8
        assert train.images.max() == 255


class TestSynthetic:
    def test_is_the_same_by_seed_and_stands_for_a_set_of_catalogue_size(self) -> None:
        first, again, other = make_synthetic(8, 10, 0), make_synthetic(8, 10, 0), make_synthetic(8, 10, 1)
        assert np.array_equal(first.images, again.images)
        assert np.array_equal(first.labels, again.labels)
        assert not np.array_equal(first.images, other.images)
        assert len(first) == DATASETS["synthetic"].num_train == 50_000
        assert first.labels.max() == 9
