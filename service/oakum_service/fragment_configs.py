"""What a fragment is told at its start, and the token that lets it speak for itself alone."""

from __future__ import annotations

import hashlib
import hmac

from oakum_service.config import Settings
from oakum_service.db.models import Trainer
from oakum_worker.protocol import FragmentConfig
from oakum_worker.spec import TrainerSpec


class FragmentConfigs:
    """Makes the configs of fragments."""

    def __init__(self, settings: Settings, secret: bytes, url: str, grace_s: float) -> None:
        """`grace_s`: what the scheduler gives a fragment to leave in."""
        self._settings = settings
        self._secret = secret
        self.url = url
        self._grace_s = grace_s

    def token(self, fragment: str) -> str:
        """The fragment's bearer token: derived, so that nothing has to be stored."""
        return "fragment-" + hmac.new(self._secret, fragment.encode(), hashlib.sha256).hexdigest()

    def make(self, fragment: str, trainer: Trainer, node: str, address: str) -> FragmentConfig:
        """The config of a fragment of the trainer on a node."""
        return FragmentConfig(
            fragment=fragment,
            trainer=trainer.name,
            node=node,
            node_address=address,
            service_url=self.url,
            service_file=str(self._settings.service_file),
            token=self.token(fragment),
            spec=TrainerSpec.model_validate(trainer.spec),
            checkpoint_dir=str(self._settings.checkpoints_dir / trainer.id),
            grace_s=self._grace_s,
            leave_deadline_s=self._settings.leave_deadline_s,
            rank_timeout_s=self._settings.rank_timeout_s,
        )
