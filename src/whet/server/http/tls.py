"""Load and check the certificate and the key of a server that speaks HTTPS."""

import ssl
from pathlib import Path

from whet.errors import OptionError


def tls_context(certfile: str, keyfile: str, password: str) -> ssl.SSLContext:
    """Read a certificate with its chain and its private key, as PEM files.

    `keyfile` is "" if `certfile` contains the key, and `password` is "" if the key is not encrypted.

    Raises:
        OptionError: A file cannot be read or holds something else, the key belongs to another certificate, or its
            password is missing or wrong.
    """
    _check_pem(certfile, "--ssl-certfile", "CERTIFICATE-----", "certificate")
    where = "--ssl-keyfile" if keyfile else "--ssl-certfile, without --ssl-keyfile"
    _check_pem(keyfile or certfile, where, "PRIVATE KEY-----", "private key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    asked = []

    def give_password() -> str:
        """Return the password. OpenSSL calls this for an encrypted key; otherwise it would prompt on the terminal."""
        asked.append(True)
        return password

    try:
        context.load_cert_chain(certfile, keyfile or None, give_password)
    except ssl.SSLError as error:
        raise _unusable(certfile, keyfile or certfile, error, is_encrypted=bool(asked), password=password) from error
    return context


def _check_pem(path: str, option: str, words: str, what: str) -> None:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"{option} {path}: {error.strerror}") from error
    if words.encode() not in content:
        raise OptionError(f"{option} {path}: there is no {what} in it, as PEM (-----BEGIN ...)")


def _unusable(certfile: str, keyfile: str, error: ssl.SSLError, *, is_encrypted: bool, password: str) -> OptionError:
    if is_encrypted and not password:
        return OptionError(f"{keyfile}: the key is encrypted; give its password with --ssl-keyfile-password")
    if is_encrypted:
        return OptionError(f"{keyfile}: --ssl-keyfile-password does not open the key")
    if error.reason == "KEY_VALUES_MISMATCH":
        return OptionError(f"the key in {keyfile} does not belong to the certificate in {certfile}")
    return OptionError(f"{certfile} and {keyfile} cannot be used for TLS: {error.reason or error}")
