"""What is wrong with the rows, gathered so that all of it is told at once."""

from service.errors import ErrorItem, VitScaleError

MAX_ITEMS = 100  # told; what is beyond is counted


class RowsInvalid(VitScaleError):
    status, code, title = 422, "ROWS_INVALID", "The measured rows are not valid"


class Problems:
    """Collects what is wrong, by line and column of the text. Lines count from 1, the header's."""

    def __init__(self) -> None:
        self._items: list[ErrorItem] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, line: int, column: str | None, detail: str, hint: str | None = None) -> None:
        self._count += 1
        if len(self._items) < MAX_ITEMS:
            escaped = None if column is None else column.replace("~", "~0").replace("/", "~1")
            self._items.append(ErrorItem(f"/line/{line}" + (f"/{escaped}" if escaped else ""), detail, hint))

    def raise_any(self) -> None:
        """Raises RowsInvalid where anything is wrong."""
        if not self._count:
            return
        first = self._items[0]
        what = f"{first.pointer}: {first.detail}" if self._count == 1 else f"{self._count} fields are wrong"
        beyond = self._count - len(self._items)
        told = f" (the first {len(self._items)} are named)" if beyond else ""
        raise RowsInvalid(f"{what}{told}; nothing was stored", self._items)
