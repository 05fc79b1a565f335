"""What of the settings must not be printed, and where it is read from."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError
from ..os_errors import why

SECRET_WORDS = ("password", "secret", "token", "private_key")


def is_secret(key: str) -> bool:
    """True for keys whose values must never be printed; names of files that hold secrets are no secret."""
    name = key.rpartition(".")[2]
    return not name.endswith(("_file", "_provider")) and any(word in name for word in SECRET_WORDS)


class FileSecret(str):
    """A secret that a file holds, as it was when it was read; ``again`` reads it once more."""

    key: str
    path: Path

    @classmethod
    def read(cls, key: str, path: Path) -> FileSecret:
        """
        Raises:
            ConfigError: as ``read_secret``.
        """
        secret = cls(read_secret(key, path))
        secret.key, secret.path = key, path
        return secret

    def again(self) -> FileSecret:
        """
        Raises:
            ConfigError: as ``read_secret``.
        """
        return self.read(self.key, self.path)


def read_secret(key: str, path: Path) -> str:
    """The secret in a file, without the line end that editors add.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    try:
        secret = path.read_text("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise ConfigError(f"{key} = {str(path)!r}: cannot be read: {why(error)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key} = {str(path)!r}: cannot be read: it is not UTF-8") from error
    if not secret:
        raise ConfigError(f"{key} = {str(path)!r}: the file is empty; it must hold the secret")
    return secret
