"""One request to the Kubernetes API: the login and its renewal, retries, errors named for who must act.

The kubernetes client gives the connection pool and the login. Its models are not used: they cost more CPU than the
calls. A read is sent again when its answer is lost or is a server's error; so is a delete, which carries a uid. A
create is sent again only if it certainly was not carried out: names are deterministic, so that after a lost answer
(`Unreachable`) a second create finds what the first one made (`Exists`).
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import urlencode

import urllib3

from ....runs.errors import BadInput, ElasticTPUError, Unreachable
from ..k8s_json import Json
from .errors import ADDRESS_CURE, Operation, error_of, is_missing_right, is_refused_login, login_failed

TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)
PAUSES = (1.0, 3.0)
"""Seconds before a right that is refused is asked for again: an API server that has just started knows no Roles yet."""


class Retries(urllib3.Retry):
    """urllib3's retries, but a 429 is repeated whatever the method, since the request was not carried out."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: Any = None,
    ) -> Self:
        if isinstance(error, urllib3.exceptions.SSLError) and not _is_certificate(error):
            # A TLS error is a broken connection unless it is about the certificate: the request may have been carried
            # out.
            error = urllib3.exceptions.ProtocolError(str(error), error)
        return super().increment(method, url, response, error, _pool, _stacktrace)

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        if status_code == 429:
            return bool(self.total)
        return super().is_retry(method, status_code, has_retry_after)


RETRIES = Retries(
    total=4,
    read=2,
    other=0,  # a certificate that is not trusted will not be trusted a second later
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET", "DELETE"),
    backoff_factor=0.5,  # 0.5, 1, 2, 4 seconds
    backoff_jitter=0.5,
    retry_after_max=5,  # a look waits for a server that says `Retry-After: 3600`, and the next look asks again
    raise_on_status=False,
)


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
      path: from the server's root, without query.
      operation: what it does, for errors.
      repeatable: it may be sent again after a lost answer, whatever its method.
    """

    method: str
    path: str
    operation: Operation
    query: Mapping[str, object] | None = None
    body: Json | None = None
    repeatable: bool = False


class RefusedForNow(Unreachable):
    """A 403 for what this login was allowed before: its rights are just being changed (`kubectl apply` of Roles)."""


class _Untrusted(Unreachable):
    """The server's certificate is not signed by the cluster's authority."""


_READS = ("get", "list")


class Connection:
    """Sends requests to one API server as one login. Thread-safe.

    Args:
      api_client: a kubernetes ApiClient; `renew()` and `login` of `credentials.Client` are used if it has them.
      pauses: seconds before each repetition of a request that is refused for a missing right.
      clock: seconds since 1970, by this machine.
    """

    def __init__(
        self,
        api_client: Any,
        *,
        retries: urllib3.Retry = RETRIES,
        timeout: urllib3.Timeout = TIMEOUT,
        pauses: Sequence[float] = PAUSES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = api_client
        self._retries, self._timeout, self._pauses = retries, timeout, pauses
        self._lock = threading.Lock()
        self._allowed: set[tuple[str, str]] = set()  # (verb, resource) of requests that succeeded
        self._clock, self._ahead = clock, 0.0  # seconds that the server's clock is ahead of ours

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host)

    @property
    def login(self) -> str:
        """Where the login comes from and how to renew it, for people; empty if unknown."""
        return str(getattr(self._client, "login", ""))

    def now(self) -> datetime:
        """The time by the API server's clock, to about a second; by our own clock before the first answer."""
        return datetime.fromtimestamp(self._clock() + self._ahead, UTC)

    def json(self, call: Call) -> Json:
        """Send a request; returns the object in the answer.

        Raises:
          ElasticTPUError: as `errors.error_of` says.
          Unreachable: no answer, or not one of a Kubernetes API.
        """
        status, body = self.send(call)
        self.expect_success(status, body, call.operation)
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or "kind" not in value:
            text = f"what answered at {self.host} is not the Kubernetes API; asked to {call.operation}"
            raise Unreachable(f"{text}; {ADDRESS_CURE}")
        return value

    def send(self, call: Call) -> tuple[int, bytes]:
        """Send a request; returns the HTTP status, whatever it is, and the body.

        Raises:
          Unreachable: no answer, or no valid login.
        """
        for pause in self._pauses:
            status, body = self._send_logged_in(call)
            if not is_missing_right(status, body):
                return status, body
            time.sleep(pause)
        return self._send_logged_in(call)

    def expect_success(self, status: int, body: bytes, operation: Operation) -> None:
        """Raise the error that an answer stands for, unless its status is 2xx."""
        right, is_read = (operation.verb, operation.resource), operation.verb in _READS
        if 200 <= status <= 299:
            self._allowed.add(right)
            return
        error = error_of(status, body, operation, self.login)
        # A login that could read something before is refused a read only while its rights change, or by a proxy in
        # between. A write may also be refused for what it would do (a quota), or because its right was never granted.
        has_read = any(verb in _READS for verb, _ in self._allowed)
        for_now = has_read if is_read else right in self._allowed and is_missing_right(status, body)
        if status == 403 and for_now and isinstance(error, BadInput):
            raise RefusedForNow(f"this login was served before and is refused now: {error}") from error
        if status == 404 and right in self._allowed and isinstance(error, BadInput):
            # The kind was served before: its definition is being replaced, or something in between answered.
            raise Unreachable(f"this cluster served that before: {error}") from error
        raise error

    def _send_logged_in(self, call: Call) -> tuple[int, bytes]:
        """Send, and once more with a new login if this one is refused: tokens live for an hour, runs for weeks."""
        used = self._client.configuration
        untrusted = None
        try:
            status, body = self._send_once(call)
            if not is_refused_login(status, body):
                return status, body
        except _Untrusted as error:  # the cluster's certificate may have been renewed: it comes with the login
            untrusted = error
        if self._renew(used):
            return self._send_once(call)
        if untrusted:
            raise untrusted
        return status, body

    def _send_once(self, call: Call) -> tuple[int, bytes]:
        url = f"{self.host}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        sent_at = self._clock()
        try:
            answer = self._client.rest_client.pool_manager.request(
                call.method,
                url,
                body=None if call.body is None else json.dumps(call.body),
                headers=self._headers(),
                timeout=self._timeout,
                retries=self._retries.new(allowed_methods=None) if call.repeatable else self._retries,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            if _is_certificate(cause):
                text = f"{self.host} does not prove that it is the cluster: its certificate is not trusted ({cause})"
                raise _Untrusted(f"{text}; check the address and the certificate authority of the cluster") from error
            text = f"the Kubernetes API at {self.host} does not answer ({_short(cause)}); asked to {call.operation}"
            raise Unreachable(text) from error
        self._set_clock(answer.headers.get("Date", ""), sent_at)
        return answer.status, answer.data

    def _set_clock(self, date: str, sent_at: float) -> None:
        """Correct the offset to the server's clock by the header `Date`, which is cut to whole seconds.

        The server wrote it between `sent_at` and now. That bounds the offset; one inside the bounds is kept.
        """
        try:
            said = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return
        least, most = said - self._clock(), said + 1.0 - sent_at
        self._ahead = max(min(self._ahead, most), least)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json, */*",
            "Content-Type": "application/json",
            "User-Agent": self._client.user_agent,
        }
        try:
            # One thread at a time: the client may renew a token, or start a login plugin.
            with self._lock:
                self._client.update_params_for_auth(headers, [], ["BearerToken"])
        except ElasticTPUError:
            raise
        except Exception as error:  # whatever a login plugin, Google's library or a vanished token file raises
            raise login_failed(error, self.login) from error
        return headers

    def _renew(self, used: Any) -> bool:
        """Log in again, unless another thread has done so since `used`; False if the client cannot."""
        renew = getattr(self._client, "renew", None)
        if renew is None:
            return False
        with self._lock:
            if self._client.configuration is used:
                try:
                    renew()
                except Exception as error:  # a login that fails now may work later, so it is Unreachable
                    raise login_failed(error, self.login) from error
        return True


def _is_certificate(error: object) -> bool:
    """Whether TLS failed because the certificate is not trusted."""
    if not isinstance(error, urllib3.exceptions.SSLError):
        return False
    return isinstance(error.args[0] if error.args else None, ssl.SSLCertVerificationError)


def _short(error: BaseException) -> str:
    """The error without the representation of the connection object that urllib3 puts in front."""
    return str(error).rpartition(">: ")[2] or type(error).__name__
