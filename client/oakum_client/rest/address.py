"""Where the service is, and how that is found."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from oakum_client.rest.errors import NotConfigured
from oakum_service.files import owners
from oakum_worker.errors import reason_of

USUAL_SOCKET = Path("/run/oakum/oakum.sock")
"""Where clients look for the service's Unix socket if nothing else tells its address."""
_UNIX = "unix:"
_FOLDER_VARIABLE, _TOKEN_VARIABLE = "OAKUM_DATA_DIR", "OAKUM_TOKEN"
_LARGEST_BYTES = 1_000_000
_WITHOUT_WAITING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened where a stranger may have laid a named pipe."""


@dataclass(frozen=True)
class Address:
    """The service's address, where it was found, the token to send (None: none), and whose certificates to
    trust."""

    url: str
    source: str
    token: str | None
    ca_file: Path | None = None
    """File with the authorities to trust; None: the system's."""

    @property
    def socket(self) -> str | None:
        """The path of the Unix socket that the address names; None for an address of the network."""
        return self.url.removeprefix(_UNIX) if self.url.startswith(_UNIX) else None

    @property
    def base_url(self) -> str:
        """What requests are made to; over a Unix socket any host will do."""
        return self.url if self.socket is None else "http://localhost"


def find_address(url: str | None = None, token: str | None = None) -> Address:
    """The service's address and token: from the arguments, else from `OAKUM_URL` and `OAKUM_TOKEN`, else from the
    file that `oakum serve` writes, else the socket that `OAKUM_SOCKET` names or is at its usual place. Raises
    `NotConfigured` where there is none, it is no HTTP address, or the token's owner has not chosen it.

    The token in the file is used only for the address in the file, so that no other service ever sees it. Where
    `OAKUM_DATA_DIR` does not name the file's folder, its address takes no other token either: the folder that one
    works in may be a stranger's, or have been unpacked from what a stranger made.
    """
    folder = os.environ.get(_FOLDER_VARIABLE)
    path = Path(folder or ".oakum") / "client.json"
    own_token = token or os.environ.get(_TOKEN_VARIABLE) or None
    chosen_url = url or os.environ.get("OAKUM_URL")
    saved = _read_address_file(path, is_needed=not chosen_url, is_named=bool(folder))
    found, source = _address_and_source(url, path, saved)
    is_saved = saved is not None and saved["url"].rstrip("/") == found
    saved_token = saved.get("token") if saved and is_saved else None
    is_trusted = is_saved and (bool(folder) or own_token in (None, saved_token))
    if is_saved and not chosen_url and not is_trusted:
        raise _not_chosen(found, path, "the token that is given" if token else _TOKEN_VARIABLE)
    if own_token and not (own_token.isascii() and own_token.isprintable()):
        name = "The token that is given" if token else _TOKEN_VARIABLE
        raise NotConfigured(f"{name} has a character that no token has: copy it again.")
    ca_file = os.environ.get("OAKUM_CA_FILE") or (saved.get("ca_file") if saved and is_trusted else None)
    return Address(found, source, own_token or saved_token, Path(ca_file) if ca_file else None)


def _address_and_source(url: str | None, path: Path, saved: dict[str, str] | None) -> tuple[str, str]:
    """The service's address, and where it was found."""
    if url:
        found, source = url, "given"
    elif env_url := os.environ.get("OAKUM_URL"):
        found, source = env_url, "from OAKUM_URL"
    elif saved:
        found, source = saved["url"], f"from {path}"
    elif socket := _socket_here():
        found, source = socket, "found on this machine"
    else:
        raise NotConfigured(
            f"No service address: OAKUM_URL is not set and {path} does not exist. Start a service here with "
            "`make run` or `oakum serve`, or set OAKUM_URL and OAKUM_TOKEN to those of a running one."
        )
    if not found.startswith(("http://", "https://", _UNIX + "/")):
        raise NotConfigured(
            f"The service address {found!r} ({source}) does not begin with http://, https:// or unix:/."
        )
    return found.rstrip("/"), source


def _not_chosen(url: str, path: Path, token: str) -> NotConfigured:
    """The error for a token that would go to an address which only the working folder's file names."""
    return NotConfigured(
        f"{token} is not sent to {url}, since only {path} in this folder names that address, and anybody may have "
        f"written it. To send it there, set OAKUM_URL={url}, or {_FOLDER_VARIABLE} to the file's folder; to use "
        f"the token in the file, unset {_TOKEN_VARIABLE}."
    )


def _socket_here() -> str | None:
    """The address of the service's Unix socket on this machine; None if there is none."""
    given = os.environ.get("OAKUM_SOCKET")
    path = Path(given) if given else USUAL_SOCKET
    return f"{_UNIX}{path.resolve()}" if path.is_socket() else None


def _read_address_file(path: Path, *, is_needed: bool, is_named: bool) -> dict[str, str] | None:
    """What the file says; None where there is none. Raises `NotConfigured` for one that cannot be read, or that
    others may have written; where it is not needed, None stands for that, too."""
    try:
        text, stranger = _text_and_stranger(path, is_named=is_named)
        document = None if stranger else json.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if not is_needed:
            return None
        raise NotConfigured(
            f"{path} cannot be read: {reason_of(error)}. Restart `oakum serve`, which writes it, "
            "or set OAKUM_URL and OAKUM_TOKEN and remove it."
        ) from error
    if stranger is not None:
        if not is_needed:
            return None
        raise NotConfigured(
            f"{path} is not read: {stranger}, and it would choose where commands and tokens go. If you trust who "
            "wrote it, set OAKUM_URL to the address in it; else work in another folder, or remove it."
        )
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        raise NotConfigured(f'{path} has no "url". Restart `oakum serve`, which writes it.')
    return document


def _text_and_stranger(path: Path, *, is_named: bool) -> tuple[str, str | None]:
    """The file's text, and who beside this account may have written it; None if nobody. Whoever names the file's
    folder has chosen whose it is. Raises `OSError`, and `ValueError` for what is no text."""
    if is_named:
        return _text_and_stranger_of(os.open(path, _WITHOUT_WAITING), is_named=True)
    folder = os.open(path.parent, _WITHOUT_WAITING | os.O_DIRECTORY)
    try:
        # A link may lead to what is root's, or one's own, and says what a stranger likes, as files in /proc do.
        descriptor = os.open(path.name, _WITHOUT_WAITING | os.O_NOFOLLOW, dir_fd=folder)
        maker = owners.stranger(os.fstat(folder))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "", "it is a link"
    finally:
        os.close(folder)
    text, stranger = _text_and_stranger_of(descriptor, is_named=False)
    return text, stranger or (maker and f"its folder is not yours alone: {maker}")


def _text_and_stranger_of(descriptor: int, *, is_named: bool) -> tuple[str, str | None]:
    with os.fdopen(descriptor, encoding="utf-8") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return "", "it is no file"
        stranger = owners.stranger(state, trusted=(state.st_uid,) if is_named else ())
        return "" if stranger else file.read(_LARGEST_BYTES), stranger
