"""Bearer tokens by client credentials: an OpenID Connect provider gives a client a token for brokers.

Source: RFC 6749, sections 2.3.1, 4.4 and 5; KIP-768.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlsplit

from odradek.errors import ConfigError
from odradek.io.http import closing_handshakes
from odradek.io.security import Security, TokenError
from odradek.io.tls import ContextSource

__all__ = ["ClientCredentials"]

MAX_SHOWN = 300
"""Characters of what a provider says that an error shows."""
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class ClientCredentials:
    """A `TokenProvider` that asks the token endpoint of a provider. A secret in a file is read for each token.

    Args:
        security: Its options that begin with `sasl_oauth_`.

    Raises:
        ConfigError: They are not complete or cannot work, or httpx2 is missing.
    """

    def __init__(self, security: Security) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise ConfigError(f"sasl_oauth_token_url needs httpx2: pip install odradek[oidc] ({error})") from None
        self._url = _url(security.sasl_oauth_token_url or "")
        if security.sasl_oauth_client_id is None:
            raise ConfigError("sasl_oauth_token_url needs sasl_oauth_client_id, or ODRADEK_SASL_OAUTH_CLIENT_ID")
        self._id, self._scope = security.sasl_oauth_client_id, security.sasl_oauth_scope
        self._secret, self._file = security.sasl_oauth_client_secret, security.sasl_oauth_client_secret_file
        if (self._secret is None) == (self._file is None):
            raise ConfigError(
                "sasl_oauth_token_url needs either sasl_oauth_client_secret or sasl_oauth_client_secret_file, or "
                "ODRADEK_SASL_OAUTH_CLIENT_SECRET"
            )
        self._tls = ContextSource(Security(ssl_cafile=security.sasl_oauth_cafile))
        self._http = httpx2

    def __repr__(self) -> str:
        return self._url

    async def __call__(self) -> str | tuple[str, float]:
        """Return a token, and its expiry if the provider says that. Raises TokenError."""
        asked_at = time.time()
        answer = self._read(*await self._ask())
        token, lifetime_s = answer.get("access_token"), answer.get("expires_in", "")
        if not isinstance(token, str) or not token:
            raise TokenError(f"{self._url}: the answer has no access_token; it has {', '.join(answer) or 'nothing'}")
        return (token, asked_at + lifetime_s) if type(lifetime_s) in (int, float) else token

    async def _ask(self) -> tuple[int, bytes]:
        """Return status and body of the response."""
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        headers = {"Accept": "application/json", "Authorization": f"Basic {self._credentials()}"}
        tls = self._tls.current()
        try:
            async with self._http.AsyncClient(verify=tls, timeout=None) as http:  # the limit is `TokenSource`'s
                response = await http.post(self._url, data=form, headers=headers, extensions=closing_handshakes())
        except self._http.HTTPError as error:
            unanswered = TokenError(f"{self._url}: {type(error).__name__}: {_cause(error)}")
            unanswered.retriable = True
            raise unanswered from error
        return response.status_code, response.content

    def _credentials(self) -> str:
        secret = self._secret
        if secret is None:
            try:
                secret = Path(self._file or "").read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                raise TokenError(f"sasl_oauth_client_secret_file: {error}") from error
        return b64encode(f"{quote_plus(self._id)}:{quote_plus(secret)}".encode()).decode()

    def _read(self, status: int, body: bytes) -> dict[str, Any]:
        """Return the fields of a response that is not an error."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if status == HTTPStatus.OK and isinstance(answer, dict):
            return answer
        said = answer if isinstance(answer, dict) else {}
        why = ": ".join(str(said[name]) for name in ("error", "error_description") if said.get(name))
        refused = TokenError(f"{self._url}: status {status}: {why[:MAX_SHOWN] or 'the answer is no JSON object'}")
        refused.retriable = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING
        if status == HTTPStatus.UNAUTHORIZED or said.get("error") == "invalid_client":
            refused.hint = "check sasl_oauth_client_id and its secret"
        elif status != HTTPStatus.OK and not why:
            refused.hint = "check sasl_oauth_token_url: what answers may be no token endpoint"
        raise refused


def _url(url: str) -> str:
    """Return the URL. Raises ConfigError, which does not show one that may have a password."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        _ = parts.port
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError("sasl_oauth_token_url: must be one like https://provider/oauth2/token, without a user")
    return url


def _cause(error: BaseException) -> str:
    """Return the first reason that says something."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return str(cause or "no reason")
