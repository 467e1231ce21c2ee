"""The server's data directory: private to its user, with the API token in it.

Knows no web framework, so that the command line may use it and still start fast.
"""

import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path

from pydantic import SecretStr

from service.errors import VitScaleError
from service.settings import Settings

TOKEN_FILE = "api_token"
_OURS = (TOKEN_FILE, "vitscale.db", "server.json", "server.lock")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TOKEN_BYTES = 32
log = logging.getLogger(__name__)


class StartRefused(VitScaleError):
    """The server does not start like this: `detail` is the one line that says why, and what would be right."""

    code, title = "START_REFUSED", "The server was not started"


def prepare_data_dir(path: Path) -> None:
    """Makes `path` (mode 0700) or, where it is there and ours but open to others, closes it.

    A directory that holds other things, or belongs to someone else (a mounted volume), is left as it is with a
    warning: to close somebody's /tmp would break more than it mends.

    Raises:
        StartRefused: it cannot be made, is no directory, or cannot be written.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise StartRefused(f"The data directory {path} cannot be used: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartRefused(f"The data directory {path} cannot be written: set VITSCALE_DATA_DIR to one that can")
    if not status.st_mode & _OTHERS:
        return
    is_ours = status.st_uid == os.geteuid() and (not names or any(name in names for name in _OURS))
    if is_ours:
        log.warning("The data directory %s was open to other users (%s); it is 0700 now", path, _mode(status))
        path.chmod(0o700)
    else:
        log.warning("The data directory %s is open to other users (%s): give VitScale its own", path, _mode(status))


def ensure_token(settings: Settings) -> SecretStr:
    """The server's token: the configured one, else the one in the data directory, which is made at the first start.

    Two servers that start at once end up with the same token: a new one is linked into place whole, or not at all.

    Raises:
        StartRefused: a token that no client could send, or a token file that is not a private file of this user.
    """
    if settings.api_token is not None:
        return _usable(settings.api_token.get_secret_value(), "VITSCALE_API_TOKEN")
    path = settings.data_dir / TOKEN_FILE
    if not path.is_symlink() and not path.exists():
        _create(path)
    token, status = _read(path)
    if status.st_uid not in {os.geteuid(), 0}:
        raise StartRefused(f"The token file {path} belongs to another user: delete it, and a new one is made")
    if status.st_mode & _OTHERS:
        path.chmod(0o600)
        log.warning(
            "The token file %s was open to other users (%s) and is 0600 now; delete it for a fresh one",
            path,
            _mode(status),
        )
    return token


def read_token(settings: Settings) -> SecretStr | None:
    """The token that a client on this machine uses: the configured one, else the one a server left; None without."""
    if settings.api_token is not None:
        return _usable(settings.api_token.get_secret_value(), "VITSCALE_API_TOKEN")
    path = settings.data_dir / TOKEN_FILE
    return _read(path)[0] if path.is_file() else None


def write_private(path: Path, content: str) -> None:
    """Replaces `path` by a file of mode 0600 with `content`, in one step: nobody reads half of it."""
    temporary = _temporary(path, content)
    temporary.replace(path)


def _create(path: Path) -> None:
    temporary = _temporary(path, secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # another server was faster: its token stands
    finally:
        temporary.unlink()


def _temporary(path: Path, content: str) -> Path:
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # made with mode 0600
    except OSError as error:
        raise StartRefused(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return Path(name)


def _read(path: Path) -> tuple[SecretStr, os.stat_result]:
    try:
        # Not through a link: who can place one could choose the token.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            status = os.fstat(descriptor)
            content = file.read(4096)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartRefused(
            f"The token file {path} cannot be read ({reason}): delete it, and a new one is made"
        ) from None
    return _usable(content.strip(), f"The token file {path}"), status


def _usable(token: str, where: str) -> SecretStr:
    if not token:
        raise StartRefused(f"{where} is empty: set a token, or leave it away and one is made")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise StartRefused(f"{where} has a character that an Authorization header cannot carry: use letters and digits")
    return SecretStr(token)


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
