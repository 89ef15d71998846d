"""How a server answers, whatever it serves."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from whet.errors import OptionError
from whet.server.tool_formats import find_format

MAX_BODY_BYTES = 8 * 2**20  # a million token ids, written out


@dataclass(frozen=True, kw_only=True)
class Settings:
    """served_names: what requests may call the model; the first is what answers call it.

    api_keys: one of them must come with each request; none: everyone may ask. is_local: only this machine can connect.
    shutdown_timeout_s: how long requests that run may go on after the end was asked for.

    What a client may take of the server without asking anything: head_timeout_s from the first byte of a request's head
    to the last, body_timeout_s for its body, write_timeout_s in which it reads none of an answer; max_connections at
    once, at most as many as files may be open; max_body_bytes of one body, and max_pending_bytes of all bodies that
    are being received. tool_call_parser: the format in which the model writes calls of tools; None: as its chat
    template says. Raises OptionError.
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
    tool_call_parser: str | None = None
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if not self.served_names or not all(self.served_names):
            raise OptionError("--served-model-name: a name is not empty")
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise OptionError("--api-key: a key is printable ASCII without spaces, and not empty")
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

    def is_key(self, given: str) -> bool:
        """In the same time whichever key it is, and however much of it is right."""
        digest = hashlib.sha256(given.encode()).digest()
        same = [hmac.compare_digest(digest, hashlib.sha256(key.encode()).digest()) for key in self.api_keys]
        return any(same)

    def cache_salt(self, key: str, asked: str | None) -> str:
        """What separates cached prompts: those of one key, and of one salt that its owner asks for.

        How long an answer takes tells whether its prompt was cached. So a key finds only what came with it, and cannot
        be found out from the salt (CVE-2025-46570).
        """
        if not key and not asked:
            return ""
        said = f"{len(key)}:{key}{asked or ''}"
        return hmac.new(self._secret, said.encode(), hashlib.sha256).hexdigest()
