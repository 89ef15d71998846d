"""Hold the settings of the HTTP server: names, keys, timeouts and limits."""

import hashlib
import hmac
import secrets
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.errors import OptionError, OutputError
from whet.files import usable_directory
from whet.server.http.tls import tls_context
from whet.server.tool_formats import find_format
from whet.ui.network import checked_keys, origin

MAX_BODY_BYTES = 8 * 2**20  # enough for a million token ids in JSON


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hold the settings of a server.

    Attributes:
        served_names: Names by which requests may call the model. Answers use the first.
        api_keys: Each request must carry one of these. Without keys, every request is served.
        is_local: Whether only this machine can connect.
        shutdown_timeout_s: How long running requests may continue after the shutdown has begun.
        max_pending_bytes: The limit of all bodies together that are being received.
        max_connections: How many connections may be open at once; fewer if the limit of open files is lower.
        head_timeout_s: How long a request's head may take, from its first byte to its last.
        write_timeout_s: A client that reads nothing of its answer for so long is disconnected.
        ssl_certfile: The PEM file of the certificate. With it the server speaks HTTPS.
        ssl_keyfile: The PEM file of the private key, if `ssl_certfile` does not contain it.
        cors_origins: Pages of these origins may send requests from a browser. "*" allows all.
        tool_call_parser: The format in which the model writes calls of tools. None for what its chat template says.
        state_dir: Where states of models with long-term memory are kept by name; empty to keep none.

    Raises:
        OptionError: A value is out of range, or the directory for states, the certificate or its key cannot be used.
    """

    served_names: tuple[str, ...]
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    is_local: bool = True
    shutdown_timeout_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    max_pending_bytes: int = 8 * MAX_BODY_BYTES
    max_connections: int = 1024
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_keyfile_password: str = field(default="", repr=False)
    cors_origins: tuple[str, ...] = ()
    tool_call_parser: str | None = None
    state_dir: str = ""
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if not self.served_names or not all(self.served_names):
            raise OptionError("--served-model-name: a name is not empty")
        checked_keys(self.api_keys)
        for name in ("head_timeout_s", "body_timeout_s", "write_timeout_s", "max_connections"):
            if not getattr(self, name) > 0:
                option = name.removesuffix("_s").replace("_", "-")
                raise OptionError(f"--{option} {getattr(self, name):g}: more than 0")
        find_format("", self.tool_call_parser)
        if self.max_pending_bytes < self.max_body_bytes:
            raise OptionError(
                f"--max-pending {self.max_pending_bytes} bytes: at least one body of --max-body {self.max_body_bytes}"
            )
        if self.shutdown_timeout_s < 0:
            raise OptionError(f"--shutdown-timeout {self.shutdown_timeout_s:g}: at least 0 seconds")

        if not self.ssl_certfile and (self.ssl_keyfile or self.ssl_keyfile_password):
            raise OptionError("--ssl-keyfile: HTTPS needs a certificate too: --ssl-certfile FILE")
        if self.state_dir:
            try:
                usable_directory(Path(self.state_dir))
            except OutputError as error:
                raise OptionError(f"--state-dir: {error}") from error
        object.__setattr__(self, "cors_origins", tuple(map(origin, self.cors_origins)))
        self.tls()

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for HTTPS. None for HTTP.

        Raises:
            OptionError: The certificate or its key cannot be used.
        """
        if not self.ssl_certfile:
            return None
        return tls_context(self.ssl_certfile, self.ssl_keyfile, self.ssl_keyfile_password)

    def behind_proxy(self, **changes: Any) -> "Settings":
        """Return the same, and some changes, for a process whose proxy speaks HTTPS and answers other origins."""
        return replace(self, ssl_certfile="", ssl_keyfile="", ssl_keyfile_password="", cors_origins=(), **changes)

    def cache_salt(self, key: str, asked: str | None) -> str:
        """Return the salt of cached prompts for an API key and a salt that the request asks for.

        Only requests with the same key and salt share cached prompts. Otherwise, the time of an answer would tell a
        client which prompts of other clients were cached (CVE-2025-46570). The key cannot be computed from the result.
        """
        if not key and not asked:
            return ""
        said = f"{len(key)}:{key}{asked or ''}"
        return hmac.new(self._secret, said.encode(), hashlib.sha256).hexdigest()
