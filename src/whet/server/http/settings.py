"""How a server answers, whatever it serves."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from whet.errors import OptionError

MAX_BODY_BYTES = 8 * 2**20  # a million token ids, written out


@dataclass(frozen=True, kw_only=True)
class Settings:
    """served_names: what requests may call the model; the first is what answers call it.

    api_keys: one of them must come with each request; none: everyone may ask. is_local: only this machine can connect.
    shutdown_timeout_s: how long requests that run may go on after the end was asked for. Raises OptionError.
    """

    served_names: tuple[str, ...]
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    is_local: bool = True
    shutdown_timeout_s: float = 30.0
    max_body_bytes: int = MAX_BODY_BYTES
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if not self.served_names or not all(self.served_names):
            raise OptionError("--served-model-name: a name is not empty")
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise OptionError("--api-key: a key is printable ASCII without spaces, and not empty")
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
