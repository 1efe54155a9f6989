"""Every call that we make to a Kubernetes API: raw JSON out, errors named for who must act.

The kubernetes client gives the connection pool and the login; its models are left aside, they cost more CPU than the
calls. A read is asked again when its answer is lost or is a server's error; so is a delete, which carries a uid. A
create is only sent again when it certainly was not carried out: names are deterministic, so after a lost answer
(`Unreachable`) a second create finds the first one (`Exists`).
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import quote, urlencode

import urllib3

from ....runs.errors import BadInput, ElasticTPUError, NotFound, Unreachable
from ..names import RUN_ID
from .errors import Asked, BeingDeleted, Expired, error_of, is_missing_right, is_refused_login, no_login
from .preflight import JOBSET_GROUP, Rule

__all__ = ["BeingDeleted", "Cluster", "Retries"]

Json = dict[str, Any]

TIMEOUT = urllib3.Timeout(connect=5.0, read=30.0)
PAUSES = (1.0, 3.0)
"""Seconds before a right that is refused is asked for again: an API server that has just started knows no Roles yet."""

_PAGE = 250  # objects a page of a listing: 5 MB of JobSets, ten times that once parsed
_LISTINGS = 3  # times a listing may begin again
_JOBSETS = f"jobsets.{JOBSET_GROUP}"


class Retries(urllib3.Retry):
    """urllib3's retries, by what is known of the request: 429 was never carried out, whatever the method."""

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
            # TLS that breaks off is a connection that breaks off: the request may have been carried out.
            error = urllib3.exceptions.ProtocolError(str(error), error)
        return super().increment(method, url, response, error, _pool, _stacktrace)

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        if status_code == 429:
            return bool(self.total)
        return super().is_retry(method, status_code, has_retry_after)


RETRIES = Retries(
    total=4,
    read=2,
    other=0,  # a certificate that is not trusted stays so
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET", "DELETE"),
    backoff_factor=0.5,  # 0.5, 1, 2, 4 seconds
    backoff_jitter=0.5,
    retry_after_max=30,
    raise_on_status=False,
)


@dataclass(frozen=True)
class _Call:
    """One request; `repeatable`: it may be sent again whatever its method."""

    method: str
    path: str
    asked: Asked
    query: Mapping[str, object] | None = None
    body: Json | None = None
    repeatable: bool = False


_READS = ("get", "list")


class _Untrusted(Unreachable):
    """The server's certificate is not the cluster's."""


class _RefusedNow(Unreachable):
    """What this login may do was taken away, or is being given anew (`kubectl apply` of Roles): nothing is known."""


class Cluster:
    """One namespace of a cluster, as one login sees it. Thread-safe.

    Args:
      api_client: a kubernetes ApiClient; `renew()` and `login` of credentials.py's one are used when they are there.
      clock: our own, in seconds since 1970.
    """

    def __init__(
        self,
        api_client: Any,
        namespace: str,
        *,
        retries: urllib3.Retry = RETRIES,
        timeout: urllib3.Timeout = TIMEOUT,
        pauses: Sequence[float] = PAUSES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = api_client
        self.namespace = namespace
        self._retries, self._timeout, self._pauses = retries, timeout, pauses
        self._lock = threading.Lock()
        self._allowed: set[tuple[str, str]] = set()
        self._clock, self._ahead = clock, 0.0

    @property
    def host(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host)

    @property
    def identity(self) -> tuple[str, str, str]:
        """What two Clusters must have in common to see the same: API server, namespace, login."""
        return self.host, self.namespace, self._login

    def now(self) -> datetime:
        """The time by the API server's clock, to about a second; by our own one before any answer."""
        return datetime.fromtimestamp(self._clock() + self._ahead, UTC)

    # -- JobSets ----------------------------------------------------------------------------------------------

    def create_jobset(self, manifest: Json) -> Json:
        """Create it as it is: an unknown field is refused. Raises Exists, BeingDeleted, BadInput, Unreachable."""
        return self._create(_JOBSETS, manifest)

    def get_jobset(self, name: str) -> Json | None:
        """The JobSet, or None when the API says that there is none."""
        return self._get(_JOBSETS, name)

    def list_jobsets(self, keep: Callable[[Json], Json] | None = None, selector: str = RUN_ID) -> list[Json]:
        """All JobSets of runs; `keep` takes from each what is wanted, a page at a time, so that memory stays small."""
        return self._list(_JOBSETS, {"labelSelector": selector}, keep)

    def delete_jobset(self, name: str, uid: str) -> bool:
        """Delete it and, before it, all that it made; whether it was there. Raises Changed: another has the name."""
        return self._delete(_JOBSETS, name, _delete_options(uid, foreground=True))

    # -- Jobs -------------------------------------------------------------------------------------------------

    def create_job(self, manifest: Json) -> Json:
        """As `create_jobset`."""
        return self._create("jobs.batch", manifest)

    def get_job(self, name: str) -> Json | None:
        """The Job, or None when the API says that there is none."""
        return self._get("jobs.batch", name)

    def delete_job(self, name: str, uid: str, foreground: bool) -> bool:
        """Delete a Job and its pods; whether it was there. Raises Changed: another one has the name."""
        return self._delete("jobs.batch", name, _delete_options(uid, foreground=foreground))

    # -- pods, logs, events -----------------------------------------------------------------------------------

    def list_pods(self, selector: str) -> list[Json]:
        """Pods by label selector."""
        return self._list("pods", {"labelSelector": selector}, None)

    def delete_pod(self, name: str, uid: str | None = None, force: bool = False) -> bool:
        """Delete a pod, with no time to end if `force`; whether it was there."""
        options = _delete_options(uid)
        if force:
            options["gracePeriodSeconds"] = 0
        return self._delete("pods", name, options)

    def pod_log(self, pod: str, container: str, tail_lines: int) -> str:
        """The last lines of a container; empty when there is none, or none yet."""
        asked = Asked("get", "pods/log", self.namespace, pod)
        query = {"container": container, "tailLines": tail_lines}
        status, body = self._send(_Call("GET", f"{self._path('pods', pod)}/log", asked, query))
        if status in (400, 404):
            return ""
        self._expect_success(status, body, asked)
        return body.decode(errors="replace")

    def list_events(self, keep: Callable[[Json], Json] | None = None) -> list[Json]:
        """Events of the namespace; `keep` as in `list_jobsets`."""
        return self._list("events", {}, keep)

    # -- preflight --------------------------------------------------------------------------------------------

    def denied(self, rules: Iterable[Rule]) -> list[str]:
        """Which of these this login may not do."""
        missing = [rule for rule in rules if not self._is_allowed(rule)]
        for pause in self._pauses:
            if missing:
                time.sleep(pause)
                missing = [rule for rule in missing if not self._is_allowed(rule)]
        return [str(rule) for rule in missing]

    def has_service_account(self, name: str) -> bool | None:
        """Whether it is there; None when this login may not look."""
        try:
            return self._get("serviceaccounts", name) is not None
        except (BadInput, _RefusedNow):
            return None

    def _is_allowed(self, rule: Rule) -> bool:
        resource, _, subresource = rule.resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": rule.verb, "group": rule.group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
        }
        asked = Asked("create", "selfsubjectaccessreviews.authorization.k8s.io", self.namespace)
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._json(_Call("POST", path, asked, body=review, repeatable=True))
        return bool(answer.get("status", {}).get("allowed"))

    # -- the four verbs ---------------------------------------------------------------------------------------

    def _create(self, resource: str, manifest: Json) -> Json:
        asked = Asked("create", resource, self.namespace, manifest["metadata"]["name"])
        query = {"fieldValidation": "Strict", "fieldManager": "elastic-tpu"}
        return self._json(_Call("POST", self._path(resource), asked, query, manifest))

    def _get(self, resource: str, name: str) -> Json | None:
        asked = Asked("get", resource, self.namespace, name)
        try:
            return self._json(_Call("GET", self._path(resource, name), asked))
        except NotFound:
            return None

    def _delete(self, resource: str, name: str, options: Json) -> bool:
        asked = Asked("delete", resource, self.namespace, name)
        try:
            self._json(_Call("DELETE", self._path(resource, name), asked, body=options))
        except NotFound:
            return False
        return True

    def _list(self, resource: str, query: Json, keep: Callable[[Json], Json] | None) -> list[Json]:
        asked = Asked("list", resource, self.namespace)
        for _ in range(_LISTINGS):
            items: list[Json] = []
            rest = ""
            try:
                while True:
                    page_query = {**query, "limit": _PAGE, **({"continue": rest} if rest else {})}
                    page = self._json(_Call("GET", self._path(resource), asked, page_query))
                    found = page.get("items") or []
                    items += [keep(item) for item in found] if keep else found
                    rest = page.get("metadata", {}).get("continue", "")
                    if not rest:
                        return items
            except Expired:
                continue
        raise Unreachable(f"the Kubernetes API did not {asked}: the listing expired {_LISTINGS} times")

    # -- one request ------------------------------------------------------------------------------------------

    def _json(self, call: _Call) -> Json:
        status, body = self._send(call)
        self._expect_success(status, body, call.asked)
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or "kind" not in value:
            raise Unreachable(f"what answered is not the Kubernetes API at {self.host}; asked to {call.asked}")
        return value

    def _expect_success(self, status: int, body: bytes, asked: Asked) -> None:
        right, reads = (asked.verb, asked.resource), asked.verb in _READS
        if 200 <= status <= 299:
            self._allowed.add(right)
            return
        error = error_of(status, body, asked, self._login)
        # A write may be refused for what it would do (a quota), or for a right that was never there; to a login that
        # was shown something before, a look is refused only while its rights change, or by whoever is in between.
        shown = any(verb in _READS for verb, _ in self._allowed)
        unlikely = shown if reads else right in self._allowed and is_missing_right(status, body)
        if status == 403 and unlikely and isinstance(error, BadInput):
            raise _RefusedNow(f"this login was served before and is refused now: {error}") from error
        raise error

    def _send(self, call: _Call) -> tuple[int, bytes]:
        for pause in self._pauses:
            status, body = self._send_logged_in(call)
            if not is_missing_right(status, body):
                return status, body
            time.sleep(pause)
        return self._send_logged_in(call)

    def _send_logged_in(self, call: _Call) -> tuple[int, bytes]:
        """Ask, and once more with a new login when this one is refused: tokens live for an hour, runs for weeks."""
        used = self._client.configuration
        untrusted = None
        try:
            status, body = self._send_once(call)
            if not is_refused_login(status, body):
                return status, body
        except _Untrusted as error:  # with the login comes the certificate, which may have been renewed
            untrusted = error
        if self._renew(used):
            return self._send_once(call)
        if untrusted:
            raise untrusted
        return status, body

    def _send_once(self, call: _Call) -> tuple[int, bytes]:
        url = f"{self.host}{call.path}" + (f"?{urlencode(call.query)}" if call.query else "")
        asked = self._clock()
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
                raise _Untrusted(f"{self.host} does not prove that it is the cluster ({cause})") from error
            text = f"the Kubernetes API at {self.host} does not answer ({_short(cause)}); asked to {call.asked}"
            raise Unreachable(text) from error
        self._set_clock(answer.headers.get("Date", ""), asked)
        return answer.status, answer.data

    def _set_clock(self, date: str, asked: float) -> None:
        """The server wrote its time, cut to a second, between the question and now: change what contradicts that."""
        try:
            said = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return
        least, most = said - self._clock(), said + 1.0 - asked
        self._ahead = max(min(self._ahead, most), least)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Accept": "application/json, */*",
            "Content-Type": "application/json",
            "User-Agent": self._client.user_agent,
        }
        try:
            # One at a time: it may renew a token, or start a login plugin.
            with self._lock:
                self._client.update_params_for_auth(headers, [], ["BearerToken"])
        except ElasticTPUError:
            raise
        except Exception as error:  # whatever a login plugin, Google's library or a vanished token file raises
            raise no_login(error, self._login) from error
        return headers

    def _renew(self, used: Any) -> bool:
        """A new login, unless another thread has just made one; whether there is anything to renew."""
        renew = getattr(self._client, "renew", None)
        if renew is None:
            return False
        with self._lock:
            if self._client.configuration is used:
                try:
                    renew()
                except Exception as error:  # a login that fails now may work later: nothing is lost
                    raise no_login(error, self._login) from error
        return True

    @property
    def _login(self) -> str:
        return str(getattr(self._client, "login", ""))

    def _path(self, resource: str, name: str = "") -> str:
        plural, _, group = resource.partition(".")
        version = "v1alpha2" if group == JOBSET_GROUP else "v1"
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        path = f"{base}/namespaces/{quote(self.namespace, safe='')}/{plural}"
        return f"{path}/{quote(name, safe='')}" if name else path


def _delete_options(uid: str | None, foreground: bool = False) -> Json:
    options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
    options["propagationPolicy"] = "Foreground" if foreground else "Background"
    if uid:
        # A repeated delete must never meet a successor of the same name.
        options["preconditions"] = {"uid": uid}
    return options


def _is_certificate(error: object) -> bool:
    """Whether TLS failed because the certificate is not trusted."""
    if not isinstance(error, urllib3.exceptions.SSLError):
        return False
    return isinstance(error.args[0] if error.args else None, ssl.SSLCertVerificationError)


def _short(error: BaseException) -> str:
    """Without the representation of the connection object that urllib3 puts in front."""
    return str(error).rpartition(">: ")[2] or type(error).__name__
