"""Where the service is, and how that is found."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from oakum_client.rest.errors import NotConfigured
from oakum_worker.errors import reason_of

USUAL_SOCKET = Path("/run/oakum/oakum.sock")
"""Where clients look for the service's Unix socket if nothing else tells its address."""
_UNIX = "unix:"


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
    `NotConfigured` where there is none, or it is no HTTP address.

    The token in the file is used only for the address in the file, so that no other service ever sees it.
    """
    path = Path(os.environ.get("OAKUM_DATA_DIR", ".oakum")) / "client.json"
    saved = _read_address_file(path)
    token = token or os.environ.get("OAKUM_TOKEN") or None
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
    found = found.rstrip("/")
    is_saved = saved is not None and saved["url"].rstrip("/") == found
    if token is None and saved and is_saved:
        token = saved.get("token")
    ca_file = os.environ.get("OAKUM_CA_FILE") or (saved.get("ca_file") if saved and is_saved else None)
    return Address(found, source, token, Path(ca_file) if ca_file else None)


def _socket_here() -> str | None:
    """The address of the service's Unix socket on this machine; None if there is none."""
    given = os.environ.get("OAKUM_SOCKET")
    path = Path(given) if given else USUAL_SOCKET
    return f"{_UNIX}{path.resolve()}" if path.is_socket() else None


def _read_address_file(path: Path) -> dict[str, str] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NotConfigured(
            f"{path} cannot be read: {reason_of(error)}. Restart `oakum serve`, which writes it, "
            "or set OAKUM_URL and OAKUM_TOKEN and remove it."
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        raise NotConfigured(f'{path} has no "url". Restart `oakum serve`, which writes it.')
    return document
