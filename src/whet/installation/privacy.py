"""Keep from a page that is meant to be shown to others what says who made it: names of users and hosts, and secrets."""

import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

_Model = TypeVar("_Model", bound=BaseModel)

_KEPT = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|ONEDNN|DNNL|ATEN|MALLOC|TORCH|PYTORCH|AOT|TRITON|CUDA|NCCL|CUBLAS|HIP|"
    r"HSA|ROCR|NVIDIA_TF32|HF|TRANSFORMERS|ORT|OV|WHET|XDG_CACHE|TCMALLOC)(_|INDUCTOR|DYNAMO|$).*"
    r"|TORCH.*|CC|CXX|CFLAGS|CXXFLAGS|LD_PRELOAD|LD_LIBRARY_PATH|TMPDIR|PYTHONMALLOC|PYTHONHASHSEED|PYTHONNOUSERSITE"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_ANYBODY = frozenset({"", "root", "user", "localhost", "USER", "HOST"})  # names that tell nothing about anybody


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that change how fast a model runs, or where files go, by name.

    The value of a variable whose name speaks of a key, a token or a password is not shown, nor is a login in a URL.
    """
    chosen = {name: variables[name] for name in sorted(variables) if _KEPT.fullmatch(name)}
    return {
        name: "set; its value is not shown" if _SECRET.search(name) else _LOGIN.sub("...@", value)
        for name, value in chosen.items()
    }


class Anonymiser:
    """Replace the home directory by ~, and the names of the user and the host by USER and HOST."""

    def __init__(self, home: str, user: str, host: str) -> None:
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        if home.strip("/"):
            self._patterns.append((re.compile(rf"{re.escape(home.rstrip('/'))}(?=[/:;,'\"\s)]|$)"), "~"))
        for name, stand_in in ((user, "USER"), (host, "HOST"), (host.partition(".")[0], "HOST")):
            if name not in _ANYBODY:
                self._patterns.append((re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), stand_in))

    @classmethod
    def here(cls) -> "Anonymiser":
        """Return one for whoever runs this process."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a user id without a name, as in many containers
            user = ""
        try:
            home = str(Path.home())
        except RuntimeError:
            home = os.environ.get("HOME", "")
        return cls(home, user, socket.gethostname())

    def text(self, text: str) -> str:
        for pattern, stand_in in self._patterns:
            text = pattern.sub(stand_in, text)
        return text

    def model(self, model: _Model, *, names: frozenset[str]) -> _Model:
        """Return a model without these names in its fields `names`, at any depth: those with texts from outside."""
        return type(model).model_validate(self._plain(model.model_dump(), names, is_named=False))

    def _plain(self, value: Any, names: frozenset[str], *, is_named: bool) -> Any:
        if isinstance(value, str):
            return self.text(value) if is_named else value
        if isinstance(value, dict):
            return {key: self._plain(v, names, is_named=is_named or key in names) for key, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._plain(v, names, is_named=is_named) for v in value]
        return value
