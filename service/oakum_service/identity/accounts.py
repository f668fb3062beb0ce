"""Unix accounts of this machine, and what they may do here."""

from __future__ import annotations

import grp
import os
import pwd

from oakum_service.config import Settings
from oakum_service.errors import Forbidden
from oakum_service.identity.names import Identity


def account_at_socket(uid: int, settings: Settings) -> Identity:
    """Who the account at the other end of the service's socket is: an administrator if it is root, the service's
    own account or a member of the administrators' group, a user if the settings let it in. Raises `Forbidden` for
    others, and for a uid without an account."""
    account = _account(uid)
    if uid in (0, os.geteuid()) or _is_member(account, settings.admin_group):
        return Identity(account.pw_name, "admin")
    if settings.socket_users == "all" or _is_member(account, settings.socket_users.removeprefix("@")):
        return Identity(account.pw_name, "user")
    raise Forbidden(
        f"the account {account.pw_name} is not let in by the service's socket: ask an administrator for a "
        "token, or for OAKUM_SOCKET_USERS to include the account"
    )


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError as error:
        raise Forbidden(f"the uid {uid} has no account on the service's machine") from error


def _is_member(account: pwd.struct_passwd, group: str | None) -> bool:
    if not group:
        return False
    try:
        wanted = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return wanted in os.getgrouplist(account.pw_name, account.pw_gid)
