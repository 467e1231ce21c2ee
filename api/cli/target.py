"""Which server, and which study: what `ID` and the settings mean."""

import re
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import SettingsError

from api.cli.console import printable
from api.cli.outcome import BAD_INPUT, Complaint, bad_input
from api.client import Client
from service.settings import Settings
from service.views import StudyView

_WHOLE_ID = re.compile(r"[a-z2-7]{12}")
_PREFIX = re.compile(r"[a-z2-7]{1,12}")
_MAX_CANDIDATES = 10


def settings_of(data_dir: Path | None = None) -> Settings:
    """The settings from VITSCALE_* and .env.

    Raises:
        Complaint: a value is not valid; one line each, without the value (it may be a secret).
    """
    try:
        settings = Settings()
    except ValidationError as error:
        lines = [f"VITSCALE_{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}" for item in error.errors()]
        raise Complaint(BAD_INPUT, *lines) from error
    except SettingsError as error:
        named = re.search(r'field "(\w+)"', str(error))
        where = f"VITSCALE_{named[1].upper()}" if named else "settings"
        raise bad_input(where, "is not valid JSON", 'a list is written ["one", "two"]') from error
    except UnicodeDecodeError as error:
        raise bad_input(".env", "is not UTF-8 text") from error
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir.expanduser().absolute()})


def connect() -> Client:
    """The client of the server that the settings mean.

    Raises:
        api.discovery.ServerNotFound, api.discovery.AddressInvalid: as `find_server`.
    """
    return Client.discover(settings_of())


def find_study(client: Client, asked: str) -> StudyView:
    """The study that `latest`, an id or the beginning of an id means.

    Raises:
        Complaint: there is none, or several begin so (they are listed).
    """
    if asked == "latest":
        newest = client.list_studies(limit=1).studies
        if not newest:
            raise bad_input("latest", "there is no study yet", "vitscale submit preset:demo")
        return newest[0]
    if _WHOLE_ID.fullmatch(asked):
        return client.get_study(asked)
    if not _PREFIX.fullmatch(asked):
        raise bad_input(printable(asked), "is no study id", "12 of a-z and 2-7, the beginning of one, or latest")
    found = [study for study in client.iter_studies() if study.id.startswith(asked)]
    if not found:
        raise bad_input(asked, "no study's id begins so", "vitscale list shows them")
    if len(found) > 1:
        shown = [f"  {one.id}  {one.status:<10}  {printable(one.name)}" for one in found[:_MAX_CANDIDATES]]
        if len(found) > _MAX_CANDIDATES:
            shown.append(f"  ... and {len(found) - _MAX_CANDIDATES} more")
        raise Complaint(BAD_INPUT, f"{asked}: {len(found)} studies' ids begin so:", *shown)
    return found[0]
