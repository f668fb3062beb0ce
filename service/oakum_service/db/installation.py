"""One database belongs to one installation of the service, that is to one data directory.

A service with another data directory has another secret, so it would take fragments for orphans, launch them
twice, and begin trainers from step 0, since their checkpoints lie elsewhere.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from pathlib import Path

from sqlalchemy.orm import Session

from oakum_service.db.models.installation import Installation
from oakum_service.errors import ConfigurationError


def claim(session: Session, secret: bytes, data_dir: Path) -> str:
    """Note that the database belongs to the installation with this secret, if it belongs to none. Returns a text
    that no other database has. Raises `ConfigurationError` if the database belongs to another installation."""
    key = hashlib.sha256(b"installation" + secret).hexdigest()[:16]
    owner = session.get(Installation, 1)
    if owner is None:
        owner = Installation(id=1, key=key, data_dir=str(data_dir.resolve()), host=socket.gethostname())
        session.add(owner)
    elif owner.key != key:
        raise ConfigurationError(
            f"the database belongs to the service with the data directory {owner.data_dir}, first started on "
            f"{owner.host}; this one has {data_dir.resolve()}. Start this service with that directory, which has "
            "the fragments' and checkpoints' folders, or give it a database of its own"
        )
    owner.database = owner.database or uuid.uuid4().hex
    return owner.database
