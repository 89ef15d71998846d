"""The model as OpenVINO GenAI reads it, by optimum-intel: it wants other packages than OpenVINO GenAI runs with."""

import os
import subprocess
import sys
from pathlib import Path

from serving_peers.contender import MODEL
from serving_peers.openvino_kinds import directory_of, weight_format


def prepare(work: Path, kind: str) -> None:
    """`optimum-cli export openvino --weight-format int8|int4`, with its defaults."""
    directory = directory_of(work, kind)
    if (directory / "openvino_model.xml").exists():
        return
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino"]
    command += ["--model", str(work / MODEL), "--task", "text-generation-with-past"]
    command += ["--weight-format", weight_format(kind), str(directory)]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
