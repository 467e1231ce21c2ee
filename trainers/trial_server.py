"""One trial after the other in one process: configurations in as JSON lines, outcomes out. For `trainers.gpu_check`.

The first line out is about the device. An outcome is `{"result": {..}}` or `{"error": {"type", "message"}, ..}`. The
process ends by itself where a trial may have left something behind that would change the next one's numbers (an error
of CUDA, memory that is not given back): who talks to it starts another.
"""

import gc
import json
import os
import sys
from typing import Any, Final, TextIO

from pydantic import ValidationError

from trainers.config import TrialConfig
from trainers.standalone import alone, clean_output

# What CUDA's libraries keep for themselves is not seen here; a trial's own tensors are.
_LEFT_OVER_BYTES: Final = 64 * 2**20


def main() -> int:
    with clean_output() as output:
        import torch

        is_cuda = torch.cuda.is_available()
        device = torch.cuda.get_device_name() if is_cuda else None
        _say(output, {"cuda": is_cuda, "device": device})
        for line in sys.stdin:
            outcome = _outcome(line)
            _say(output, outcome)
            if not _is_clean(outcome):
                return 1
    return 0


def _outcome(line: str) -> dict[str, Any]:
    import torch

    from trainers.trial import run_trial

    os.environ.update(alone())
    try:
        result = run_trial(TrialConfig.model_validate_json(line))
    except (ValidationError, ValueError, RuntimeError, MemoryError) as error:  # torch's OutOfMemoryError is the third
        is_out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError) or _tells_of_memory(str(error))
        message = (str(error).strip().splitlines() or [""])[0]
        return {
            "error": {"type": type(error).__name__, "message": message[:500]},
            "is_out_of_memory": is_out_of_memory,
            "is_understood": is_out_of_memory or isinstance(error, ValueError),
        }
    assert result is not None  # rank 0 of 1
    return {"result": result.model_dump(mode="json")}


def _tells_of_memory(message: str) -> bool:
    return "DefaultCPUAllocator: " in message or "out of memory" in message or "CUBLAS_STATUS_ALLOC_FAILED" in message


def _is_clean(outcome: dict[str, Any]) -> bool:
    """Whether the next trial finds what a fresh process would. An error's frames, which hold tensors, are gone here."""
    import torch

    if not outcome.get("is_understood", True):
        return False
    gc.collect()
    if not torch.cuda.is_available():
        return True
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() < _LEFT_OVER_BYTES


def _say(output: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=output, flush=True)


if __name__ == "__main__":
    sys.exit(main())
