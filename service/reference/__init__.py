"""Reference studies: what others measured and published, as rows that can be imported.

`paper` is "Scaling Vision Transformers: Evaluating DeepSpeed for Image-Centric Workloads" (arXiv 2602.21081, CC0): the
44 runs whose logs its authors published, on the clusters Vector (one node of up to eight Tesla T4) and Tesla (up to
five nodes of one GPU), a study for each cluster, topology, data set and scaling mode. `docs/paper_studies.py` made the
files.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from service.analysis.scaling import Mode
from service.errors import NotFound
from service.spelling import closest

PAPER = "paper"
_DESCRIPTION = """\
Measured by the authors of "Scaling Vision Transformers: Evaluating DeepSpeed for Image-Centric Workloads" \
(arXiv 2602.21081; logs under CC0), DeepSpeed 0.15.4: ViT-B/16, images resized to 224, AdamW 1e-4, ZeRO 0.
epoch_seconds, loss and accuracy are means over ranks. Where steps were logged, rank 0 has compute_seconds (forward \
and backward) and communication_seconds (all-reduce, waiting included), each the mean over all steps of the epoch, the \
slow first one too; the optimizer's own time (17 to 49 ms a step) is in neither. Steps per epoch are as logged: the \
last batch of an epoch is a partial one.
"""


@dataclass(frozen=True)
class ReferenceStudy:
    """One study to import. `text` is CSV as `service.measured_rows` reads it."""

    name: str
    mode: Mode
    description: str
    tags: tuple[str, ...]
    text: str

    @property
    def key(self) -> str:
        """The same for the same rows: imported with it as the idempotency key, a study is there once."""
        return f"reference-{self.name}-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


def reference_studies(collection: str) -> list[ReferenceStudy]:
    """The studies of a collection, by name.

    Raises:
        NotFound: there is none of this name; says which there are.
    """
    if collection != PAPER:
        hint = "did you mean paper?" if closest(collection, [PAPER]) else f"there is {PAPER}"
        raise NotFound(f"There is no reference collection {collection[:100]!r}: {hint}")
    return sorted(_paper(), key=lambda study: study.name)


def _paper() -> Iterator[ReferenceStudy]:
    for entry in files(__name__).joinpath(PAPER).iterdir():
        name, _, suffix = entry.name.partition(".")
        if suffix != "csv":
            continue
        mode: Mode = "weak" if name.endswith("-weak") else "strong"
        yield ReferenceStudy(
            f"{PAPER}-{name}", mode, _DESCRIPTION, ("reference", "arXiv:2602.21081"), entry.read_text("utf-8")
        )
