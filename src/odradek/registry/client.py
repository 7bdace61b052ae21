"""`SchemaRegistry`: requests to a schema registry, over HTTP.

Source: Confluent's documentation, "Schema Registry API Reference". Karapace, Apicurio (`/apis/ccompat/v7`) and Redpanda
answer the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from urllib.parse import quote, urlsplit

from odradek import arguments
from odradek.core.backoff import Backoff
from odradek.errors import Closed, ConfigError, OdradekError
from odradek.io.http import closing_handshakes
from odradek.io.retry import retry
from odradek.io.security import SECURITY, Security, TokenError, TokenProvider, ask_provider
from odradek.io.tls import ContextSource
from odradek.registry.schemas import (
    MISSING_CODES,
    Reference,
    RegisteredSchema,
    RegistryError,
    Schema,
    SchemaId,
    complete,
    passes_soon,
)
from odradek.registry.serdes import RegistrySerde, SerdeOptions, load_format
from odradek.registry.shared_calls import SharedCalls

if TYPE_CHECKING:
    import httpx2

__all__ = ["SchemaRegistry"]

T = TypeVar("T")
Read = Callable[[Mapping[str, Any]], Any]
"""A function that returns what an answer says. Raises KeyError, TypeError or ValueError if it does not say it."""

MAX_KEPT = 10_000
"""Answers that are remembered, unknown ids as well: damaged values can have four billion."""
UNKNOWN_S = 60.0
"""Time for which an id that the registry does not know counts as unknown (s)."""
SERIALIZED = "?format=serialized"
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"

_URL = arguments.text("the URL of a registry")
_TEXT = arguments.optional(arguments.text())
_SECONDS = arguments.seconds(above=True)


class SchemaRegistry:
    """A schema registry, to be used as `async with`, in one event loop (asyncio or trio).

    Schemas are asked for once, whatever the number of tasks that need them, and remembered. A request that fails in a
    way that may pass is repeated within `timeout`.

    Args:
        url: `http://` or `https://`; several of one cluster are tried one after the other.
        username, password: For basic authentication.
        token: A bearer token, or an asynchronous function that returns one and is called before every request.
        headers: Sent with every request, such as `target-sr-cluster`.
        security: The options of it that begin with `ssl_`, for `https://`. Files that have changed are read again.
        timeout: Time limit for one look-up, attempts included (s). Each of several URLs has its share of it.

    Raises:
        ConfigError, TypeError: An option that cannot work.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | TokenProvider | None = None,
        headers: Mapping[str, str] | None = None,
        security: Security | None = None,
        timeout: float = 10.0,
    ) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise ConfigError(f"a schema registry needs httpx2: pip install odradek[registry] ({error})") from None
        self._urls = [_base(each) for each in ([url] if isinstance(url, str) else url)]
        if not self._urls:
            raise ConfigError("url=[]: must be at least one URL")
        self._shown = ", ".join(map(_without_password, self._urls))
        self._timeout: float = _SECONDS("timeout", timeout)
        self._token = token
        auth = None if username is None else (_TEXT("username", username), password or "")
        self._files = ContextSource(SECURITY("security", security) or Security())
        share_s = self._timeout / len(self._urls)  # one that is silent leaves time for the others
        self._new_client = partial(httpx2.AsyncClient, auth=auth, headers=headers, timeout=share_s)
        self._tls = self._files.current()
        self._http = self._new_client(verify=self._tls)
        self._http_errors: type[Exception] = httpx2.HTTPError
        self._open, self._attempts = False, 0
        self._calls = SharedCalls(MAX_KEPT)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        await self._http.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._shown}>"

    # ---- serializers and deserializers -----------------------------------------------------------------------

    @arguments.with_options(SerdeOptions)
    def avro(self, schema: str | None = None, **options: Unpack[SerdeOptions]) -> RegistrySerde[Any]:
        """Return a serializer and deserializer of Avro, with the values of the package fastavro: dict, datetime ...

        Args:
            schema: As JSON: what is written, and what is read, whichever schema was written. None: values are read as
                they were written, and written by the newest schema of the subject (`registration="latest"`).

        Raises:
            ConfigError: It is no schema, or a package is missing.
        """
        return RegistrySerde(self, load_format("avro", "AvroFormat", schema), options)

    @arguments.with_options(SerdeOptions)
    def json_schema(self, schema: str | None = None, **options: Unpack[SerdeOptions]) -> RegistrySerde[Any]:
        """Return a serializer and deserializer of JSON that a JSON Schema accepts.

        Args:
            schema: What values are checked against, written or read. None: values are checked against the schema that
                they were written with, and written by the newest of the subject (`registration="latest"`).

        Raises:
            ConfigError: It is no schema, or a package is missing.
        """
        return RegistrySerde(self, load_format("json", "JsonFormat", schema), options)

    @arguments.with_options(SerdeOptions)
    def protobuf(self, message: type[T], **options: Unpack[SerdeOptions]) -> RegistrySerde[T]:
        """Return a serializer and deserializer of Protobuf messages.

        Args:
            message: The class that protoc made.

        Raises:
            ConfigError: A package is missing.
            TypeError: It is no class of messages.
        """
        return RegistrySerde(self, load_format("protobuf", "ProtobufFormat", message), options)

    # ---- schemas ---------------------------------------------------------------------------------------------

    async def schema(self, key: int | str, *, serialized: bool = False) -> RegisteredSchema | None:
        """Return the schema with an id or a GUID, or None if the registry has none.

        Args:
            key: The id or the GUID.
            serialized: The texts of Protobuf are descriptors in Base64, instead of the source, where the registry makes
                them (`format=serialized`).

        Raises:
            RegistryError: The registry did not answer within `timeout`, or refused.

        Cancellation: safe.
        """
        path = f"/schemas/ids/{key}" if isinstance(key, int) else f"/schemas/guids/{quote(key, safe='')}"
        form = SERIALIZED if serialized else ""
        return await self._complete(await self._get(path + form, _schema, keep_none_s=UNKNOWN_S), form)

    async def latest(self, subject: str) -> tuple[SchemaId, RegisteredSchema] | None:
        """Return the newest schema of a subject, or None. Errors: as `schema`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/latest"
        newest = await self._get(path, lambda answer: (_schema_id(answer), _schema(answer)), keep_s=0)
        schema = None if newest is None else await self._complete(newest[1])
        return None if schema is None else (newest[0], schema)

    async def register(self, subject: str, schema: Schema) -> SchemaId:
        """Register a schema under a subject, unless it is registered there. Errors: as `schema`."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        known: SchemaId = await self._post(path, schema, _schema_id)
        return known

    async def find(self, subject: str, schema: Schema) -> tuple[SchemaId, int] | None:
        """Return the id and the version of a schema under a subject, or None if it is not registered there. Errors: as
        `schema`."""
        path = f"/subjects/{quote(subject, safe='')}"
        known: tuple[SchemaId, int] | None = await self._post(
            path, schema, lambda answer: (_schema_id(answer), int(answer["version"]))
        )
        return known

    async def _complete(self, schema: Schema | None, form: str = "") -> RegisteredSchema | None:
        if schema is None:
            return None
        steps = complete(schema)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(await self._version(wanted, form))
        except StopIteration as end:
            made: RegisteredSchema = end.value
            return made

    async def _version(self, wanted: Reference, form: str) -> Schema:
        path = f"/subjects/{quote(wanted.subject, safe='')}/versions/{wanted.version}{form}"
        schema: Schema | None = await self._get(path, _schema)
        if schema is None:
            why = f"there is no version {wanted.version} of {wanted.subject}, which a schema needs"
            raise RegistryError(self._shown, why, HTTPStatus.NOT_FOUND)
        return schema

    # ---- requests --------------------------------------------------------------------------------------------

    async def _get(self, path: str, read: Read, **keep: float) -> Any:
        return await self._calls.get(path, lambda: self._ask("GET", path, None, read), **keep)

    async def _post(self, path: str, schema: Schema, read: Read) -> Any:
        body: dict[str, Any] = {"schema": schema.text}
        if schema.kind != "AVRO":
            body["schemaType"] = schema.kind
        if schema.references:
            body["references"] = [each._asdict() for each in schema.references]
        return await self._calls.get((path, schema), lambda: self._ask("POST", path, body, read))

    async def _ask(self, method: str, path: str, body: Any, read: Read) -> Any:
        """Send a request until it is answered; return what the answer says, None if that is that there is none."""
        late = RegistryError(self._shown, f"no answer within {self._timeout:g} s")
        return await retry(
            lambda: self._attempt(method, path, body, read),
            Backoff(first_s=0.1),
            passes=_passes_soon,
            limit_s=self._timeout,
            late=late,
        )

    async def _attempt(self, method: str, path: str, body: Any, read: Read) -> Any:
        if not self._open:
            raise Closed(f"{self!r} is not open: use it inside its async with block")
        await self._follow_files()
        url, headers = self._urls[self._attempts % len(self._urls)], {"Accept": CONTENT_TYPE}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {await self._bearer()}"
        if body is not None:
            headers["Content-Type"] = CONTENT_TYPE
        try:
            response = await self._http.request(
                method, url + path, json=body, headers=headers, extensions=closing_handshakes()
            )
        except self._http_errors as error:
            self._attempts += 1  # the next one is for the next of the URLs
            raise RegistryError(self._shown, _reason(error)) from error
        return self._answer(response, read)

    async def _follow_files(self) -> None:
        """Use another client if a file of certificates or keys has changed. Requests that the former one has not
        finished fail, and are repeated."""
        if (tls := self._files.current()) is not self._tls:
            former, self._tls, self._http = self._http, tls, self._new_client(verify=tls)
            await former.aclose()

    async def _bearer(self) -> str:
        """Return the token. Raises RegistryError if the provider fails: that is no error of a record, and may pass."""
        if self._token is None or isinstance(self._token, str):
            return self._token or ""
        try:
            made = await ask_provider(self._token)
        except TokenError as error:
            raise RegistryError(self._shown, f"no token: {error.message()}") from error
        except Exception as error:  # whatever a provider raises; its text may have a secret
            why = f"no token: the token provider raised {type(error).__name__}"
            raise RegistryError(self._shown, why) from error
        return made if isinstance(made, str) else made[0]

    def _answer(self, response: httpx2.Response, read: Read) -> Any:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code == HTTPStatus.OK and isinstance(answer, dict):
            with suppress(KeyError, TypeError, ValueError):  # it is something else
                return read(answer)
        error = answer if isinstance(answer, dict) else {}
        if response.status_code == HTTPStatus.NOT_FOUND and error.get("error_code") in MISSING_CODES:
            return None
        if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._attempts += 1
        why = error.get("message") or "what answers is no schema registry"
        failed = RegistryError(self._shown, f"status {response.status_code}: {why}", response.status_code)
        failed.retriable |= "error_code" not in error
        raise failed


def _passes_soon(error: OdradekError) -> bool:
    """Return True if another attempt may succeed within one look-up."""
    return error.retriable and passes_soon(getattr(error, "status", None))


def _base(url: object) -> str:
    """Return a URL without the last slash. Raises TypeError, ConfigError."""
    text: str = _URL("url", url)
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as of a port that is no number
        is_valid = False
    if not is_valid:
        raise ConfigError("url: must be one like https://registry:8081")  # which may have a password: it is not shown
    return text.rstrip("/")


def _reason(error: Exception) -> str:
    """Name an error of the HTTP client, by its cause if it says nothing itself."""
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {cause or 'no reason'}"


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _schema(response: Mapping[str, Any]) -> Schema:
    references = (
        Reference(each["name"], each["subject"], each["version"]) for each in response.get("references") or ()
    )
    text: str = response["schema"]
    if not isinstance(text, str):
        raise TypeError("a schema is a text")
    return Schema(response.get("schemaType") or "AVRO", text, tuple(references))


def _schema_id(response: Mapping[str, Any]) -> SchemaId:
    return SchemaId(int(response["id"]), response.get("guid"))
