"""The config that a fragment gets at its start, the token with which its agent may speak for this fragment only,
and the secrets of the generations that it is a member of."""

from __future__ import annotations

import hashlib
import hmac

from oakum_service.config import Settings
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.slots import is_part, slots_in
from oakum_service.fragments.trainer_files import open_files
from oakum_worker.fragment_config import FragmentConfig

_OF_THE_SERVICE = {"notify": (), "sizes": "any", "slots_per_fragment": "auto", "tags": (), "notes": ""}
"""Options of a spec that fragments are not told, as if they were left out."""


class FragmentConfigs:
    """Makes the configs with which fragments start, and their tokens."""

    def __init__(self, settings: Settings, secret: bytes, url: str, grace_s: float) -> None:
        """`secret` is the key that tokens are derived from, `url` the service's address as nodes see it, `grace_s`
        the seconds that the scheduler gives a fragment to leave."""
        self._settings = settings
        self._secret = secret
        self.url = url
        self._grace_s = grace_s
        self.files = open_files(settings)
        """Whose account the fragments' code and checkpoints belong to."""
        self._authorities = None if settings.ca_file is None else settings.ca_file.read_text(encoding="utf-8")

    def token(self, fragment: str) -> str:
        """The fragment's bearer token. It is derived from the service's secret, so nothing has to be stored."""
        return "fragment-" + hmac.new(self._secret, fragment.encode(), hashlib.sha256).hexdigest()

    def secret_of(self, trainer: str, generation: int) -> str:
        """The secret of a trainer's generation, in hexadecimal digits, derived as tokens are."""
        return hmac.new(self._secret, f"generation {generation} of {trainer}".encode(), hashlib.sha256).hexdigest()

    def make(self, fragment: str, trainer: Trainer, node: str, address: str) -> FragmentConfig:
        """The config of a fragment of this trainer on this node; `address` is the node's."""
        run_as = self.files.run_as(trainer.user_name)
        return FragmentConfig(
            fragment=fragment,
            trainer=trainer.name,
            node=node,
            node_address=address,
            service_url=self.url,
            # Other accounts cannot read it: their agents have to find the service where it was.
            service_file=None if run_as is not None else str(self._settings.service_file),
            service_ca=self._authorities,
            token=self.token(fragment),
            # Recipients stay with the service: whoever knows a webhook's address may post there. The numbers of
            # nodes and slots are the service's to keep to, and tags and notes people's to read: a worker too old
            # to know these options need not refuse them.
            spec=trainer.spec.model_copy(update=_OF_THE_SERVICE),
            ranks=len(slots_in(node)) if is_part(node) else None,
            run_as=run_as,
            checkpoint_dir=str(self.files.checkpoints(trainer.user_name).of(trainer.id)),
            grace_s=self._grace_s,
            leave_deadline_s=self._settings.leave_deadline_s,
            rank_timeout_s=self._settings.rank_timeout_s,
        )
