"""Bearer tokens for Amazon MSK: URLs that are signed with AWS credentials (IAM), by botocore.

Source: AWS Signature Version 4 for query strings; the token is that of AWS's own signers for MSK ("Connect to MSK with
OAUTHBEARER"): `kafka-cluster:Connect` of a region, in base64 for URLs without padding.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from typing import Any

import anyio.to_thread

from odradek._version import __version__
from odradek.errors import ConfigError
from odradek.io.security import TokenError

__all__ = ["MskIam"]

LIFETIME_S = 900
"""Lifetime of a token (s): the maximum that MSK accepts."""


class MskIam:
    """A `TokenProvider` with the credentials that AWS's tools use, too: environment, profile, container, instance.

    Args:
        region: That of the cluster, such as `eu-west-1`.

    Raises:
        ConfigError: botocore is missing.
    """

    def __init__(self, region: str) -> None:
        try:
            from botocore.session import Session
        except ImportError as error:
            raise ConfigError(f"sasl_aws_region needs botocore: pip install odradek[msk] ({error})") from None
        self._region, self._new_session = region, Session

    def __repr__(self) -> str:
        return f"AWS credentials for MSK in {self._region}"

    async def __call__(self) -> tuple[str, float]:
        """Return a token and its expiry. Raises TokenError. Finding credentials may take requests, in a thread, which
        ends by itself if this is cancelled."""
        return await anyio.to_thread.run_sync(self._make, abandon_on_cancel=True)

    def _make(self) -> tuple[str, float]:
        from botocore.exceptions import BotoCoreError, ClientError

        signed_at = time.time()
        try:
            # A session keeps credentials that do not say when they expire, also when they are replaced in their file.
            credentials = self._new_session().get_credentials()
            if credentials is None:
                raise TokenError(f"{self!r}: there are none; `aws sts get-caller-identity` says the same")
            return signed_token(self._region, credentials.get_frozen_credentials()), signed_at + LIFETIME_S
        except (BotoCoreError, ClientError) as error:
            failed = TokenError(f"{self!r}: {type(error).__name__}: {error}")
            failed.retriable = True
            raise failed from error


def signed_token(region: str, credentials: Any) -> str:
    """Return a token of these credentials (of botocore), signed now."""
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    url = f"https://kafka.{region}.amazonaws.com/"
    request = AWSRequest("GET", url, params={"Action": "kafka-cluster:Connect"})
    SigV4QueryAuth(credentials, "kafka-cluster", region, expires=LIFETIME_S).add_auth(request)
    signed = f"{request.prepare().url}&User-Agent=odradek%2F{__version__}"  # which is no part of what is signed
    return urlsafe_b64encode(signed.encode()).decode().rstrip("=")
