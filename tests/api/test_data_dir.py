"""The data directory and the token in it: private, made once, never half."""

import logging
import os
import stat
import threading
from pathlib import Path

import pytest
from pydantic import SecretStr

from api.data_dir import StartRefused, ensure_token, prepare_data_dir, read_token, write_private
from service.settings import Settings


def settings_of(data_dir: Path, token: str | None = None) -> Settings:
    return Settings(_env_file=None, data_dir=data_dir, api_token=None if token is None else SecretStr(token))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestPrepareDataDir:
    def test_a_new_one_is_private(self, tmp_path: Path) -> None:
        prepare_data_dir(tmp_path / "a" / "b")
        assert mode(tmp_path / "a" / "b") == 0o700

    def test_one_of_ours_that_is_open_is_closed_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "vitscale.db").touch()
        tmp_path.chmod(0o755)
        prepare_data_dir(tmp_path)
        assert mode(tmp_path) == 0o700
        assert "0755" in caplog.text

    def test_one_with_other_things_is_left_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "thesis.tex").touch()
        tmp_path.chmod(0o755)
        prepare_data_dir(tmp_path)
        assert mode(tmp_path) == 0o755
        assert "give VitScale its own" in caplog.text

    def test_a_private_one_needs_no_word(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        tmp_path.chmod(0o700)
        prepare_data_dir(tmp_path)
        assert caplog.text == ""

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StartRefused, match="cannot be used"):
            prepare_data_dir(tmp_path / "file")


class TestEnsureToken:
    def test_is_made_once_private_and_long(self, tmp_path: Path) -> None:
        first = ensure_token(settings_of(tmp_path))
        assert len(first.get_secret_value()) >= 43
        assert ensure_token(settings_of(tmp_path)) == first
        assert [path.name for path in tmp_path.iterdir()] == ["api_token"]
        assert mode(tmp_path / "api_token") == 0o600

    def test_the_configured_one_wins_and_leaves_no_file(self, tmp_path: Path) -> None:
        assert ensure_token(settings_of(tmp_path, "mine")).get_secret_value() == "mine"
        assert list(tmp_path.iterdir()) == []

    def test_servers_that_start_at_once_get_the_same(self, tmp_path: Path) -> None:
        barrier = threading.Barrier(8)
        tokens: list[str] = []

        def start() -> None:
            barrier.wait()
            tokens.append(ensure_token(settings_of(tmp_path)).get_secret_value())

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(tokens) == 8
        assert len(set(tokens)) == 1

    def test_an_open_file_is_closed_with_a_warning_that_does_not_tell_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = ensure_token(settings_of(tmp_path)).get_secret_value()
        (tmp_path / "api_token").chmod(0o644)
        with caplog.at_level(logging.DEBUG):
            assert ensure_token(settings_of(tmp_path)).get_secret_value() == token
        assert mode(tmp_path / "api_token") == 0o600
        assert "0644" in caplog.text
        assert token not in caplog.text

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").write_text("chosen-by-another")
        (tmp_path / "api_token").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StartRefused, match="cannot be read"):
            ensure_token(settings_of(tmp_path))

    @pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe", b"two words"])
    def test_a_file_without_a_usable_token_is_refused(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "api_token").write_bytes(content)
        with pytest.raises(StartRefused, match="api_token"):
            ensure_token(settings_of(tmp_path))

    @pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\nbreak"])
    def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(self, tmp_path: Path, token: str) -> None:
        with pytest.raises(StartRefused, match="VITSCALE_API_TOKEN") as refusal:
            ensure_token(settings_of(tmp_path, token))
        assert not token or token not in str(refusal.value)


class TestReadToken:
    def test_is_none_before_the_first_start_and_makes_nothing(self, tmp_path: Path) -> None:
        assert read_token(settings_of(tmp_path)) is None
        assert list(tmp_path.iterdir()) == []

    def test_is_what_the_server_uses(self, tmp_path: Path) -> None:
        assert ensure_token(settings_of(tmp_path)) == read_token(settings_of(tmp_path))


class TestWritePrivate:
    def test_replaces_whole_and_private_whatever_the_umask(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_text("a longer text than the new one")
        path.chmod(0o666)
        mask = os.umask(0)
        try:
            write_private(path, "new")
        finally:
            os.umask(mask)
        assert (path.read_text(), mode(path)) == ("new", 0o600)
        assert list(tmp_path.iterdir()) == [path]
