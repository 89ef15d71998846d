"""Hand workloads over to another process: by name, or from memory in a file that this process wrote."""

import json
import sys
from pathlib import Path

import cloudpickle
import torch

from whet.core.artefact.operators import load_libraries, loaded_libraries
from whet.core.workload.measurables import AnyWorkload
from whet.errors import TargetError, foreign, named_reason

PICKLED = "pickled:"  # the address of a workload that was handed over from memory begins with this
_SURROUNDINGS = "surroundings.json"  # the file beside the workload that says how to import and run its code


def hand_over(workload: AnyWorkload, path: Path) -> str:
    """Write a workload with its code for another process of this user, and return the address that opens it.

    torch.save writes memory that several batches share once. cloudpickle alone would write it once per batch. A file
    beside the workload holds where Python finds modules here, since cloudpickle refers to modules by name; how many
    threads PyTorch uses; and the libraries of custom operators that were loaded here.

    Raises:
        TargetError: Something in the workload cannot be pickled.
    """
    surroundings = {
        "sys_path": [str(Path(place).absolute()) for place in sys.path],  # "" becomes the working directory
        "num_threads": torch.get_num_threads(),
        "libraries": loaded_libraries(),
    }
    (path.parent / _SURROUNDINGS).write_text(json.dumps(surroundings), encoding="utf-8")

    def with_remedy(error: Exception) -> str:
        return f"{named_reason(error)}; write a function that builds it, and name it as FILE.py:FUNCTION"

    with foreign(TargetError, "the model cannot be handed to another process", words=with_remedy):
        torch.save(workload, path, pickle_module=cloudpickle)
    return f"{PICKLED}{path}"


def taken_over(address: str) -> AnyWorkload:
    """Return the workload at an address that `hand_over` returned."""
    path = Path(address.removeprefix(PICKLED))
    surroundings = json.loads((path.parent / _SURROUNDINGS).read_text(encoding="utf-8"))
    torch.set_num_threads(surroundings["num_threads"])
    places = surroundings["sys_path"]
    sys.path[:] = [*places, *(place for place in sys.path if place not in places)]
    load_libraries(surroundings["libraries"])
    workload: AnyWorkload = torch.load(path, weights_only=False)
    return workload
