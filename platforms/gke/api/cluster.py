"""The calls that we make to a Kubernetes API, one method each. JSON goes in and out; errors are named for who must act.

All of them may raise what `errors.error_of` lists: above all `Unreachable` (unknown: the API does not answer, or the
login is refused) and `BadInput` (the cluster refuses the call; says what to do). How a request is sent and repeated is
in `connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

import urllib3

from ....runs.errors import BadInput, ElasticTPUError, NotFound, Unreachable
from ..k8s_json import Json
from ..names import RUN_ID
from .connection import PAUSES, RETRIES, TIMEOUT, Call, Connection, RefusedForNow
from .errors import ADDRESS_CURE, ListingExpired, Operation, message_of, user_in
from .preflight import JOBSET_GROUP, Rule

_PAGE = 250  # objects a page of a listing: 5 MB of JobSets, ten times that once parsed
_LISTINGS = 3  # times that a listing is begun
_JOBSETS = f"jobsets.{JOBSET_GROUP}"


class Cluster:
    """One namespace of a cluster, as one login sees it. Thread-safe.

    Args:
      api_client, retries, timeout, pauses, clock: as for `Connection`.
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
        self.namespace = namespace
        self._connection = Connection(api_client, retries=retries, timeout=timeout, pauses=pauses, clock=clock)
        self._pauses = pauses

    @property
    def host(self) -> str:
        """Address of the API server."""
        return self._connection.host

    @property
    def identity(self) -> tuple[str, str, str]:
        """API server, namespace and login: two Clusters that agree in them see the same objects."""
        return self.host, self.namespace, self._connection.login

    def now(self) -> datetime:
        """The time by the API server's clock, to about a second; by our own clock before the first answer."""
        return self._connection.now()

    # -- JobSets ----------------------------------------------------------------------------------------------

    def create_jobset(self, manifest: Json) -> Json:
        """Create a JobSet; returns it as the API has it.

        Raises:
          Exists: the name is taken. BeingDeleted: by an object that is being deleted.
          BadInput: the cluster refuses it; an unknown field is refused as well.
          Unreachable: unknown whether it was created.
        """
        return self._create(_JOBSETS, manifest)

    def get_jobset(self, name: str) -> Json | None:
        """The JobSet, or None if the API says that there is none."""
        return self._get(_JOBSETS, name)

    def list_jobsets(self, keep: Callable[[Json], Json] | None = None, selector: str = RUN_ID) -> list[Json]:
        """The JobSets of runs.

        Args:
          keep: applied to each object as its page arrives, so that only what it returns stays in memory.
          selector: a label selector.
        """
        return self._list(_JOBSETS, {"labelSelector": selector}, keep)

    def delete_jobset(self, name: str, uid: str) -> bool:
        """Delete the JobSet in the foreground: first what it owns, then itself. Returns whether it existed.

        Raises:
          Changed: another JobSet has the name, which is left alone.
        """
        return self._delete(_JOBSETS, name, _delete_options(uid, foreground=True))

    # -- Jobs -------------------------------------------------------------------------------------------------

    def create_job(self, manifest: Json) -> Json:
        """Create a Job, as `create_jobset`."""
        return self._create("jobs.batch", manifest)

    def get_job(self, name: str) -> Json | None:
        """The Job, or None if the API says that there is none."""
        return self._get("jobs.batch", name)

    def list_jobs(self, selector: str) -> list[Json]:
        """The Jobs that match a label selector."""
        return self._list("jobs.batch", {"labelSelector": selector}, None)

    def delete_job(self, name: str, uid: str, foreground: bool) -> bool:
        """Delete a Job and its pods, before it if `foreground`, else after it. Returns whether it existed.

        Raises:
          Changed: another Job has the name, which is left alone.
        """
        return self._delete("jobs.batch", name, _delete_options(uid, foreground=foreground))

    # -- pods, logs, events -----------------------------------------------------------------------------------

    def list_pods(self, selector: str) -> list[Json]:
        """The pods that match a label selector."""
        return self._list("pods", {"labelSelector": selector}, None)

    def delete_pod(self, name: str, uid: str | None = None, grace: int | None = None) -> bool:
        """Delete a pod. Returns whether it existed.

        Args:
          grace: seconds, 0 by force; without it the pod's own.

        Raises:
          Changed: `uid` is given and another pod has the name.
        """
        options = _delete_options(uid)
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return self._delete("pods", name, options)

    def pod_log(self, pod: str, container: str, tail_lines: int) -> str:
        """The last lines of a container's log; empty if there is no pod, no container or no log yet."""
        operation = Operation("get", "pods/log", self.namespace, pod)
        query = {"container": container, "tailLines": tail_lines}
        status, body = self._connection.send(Call("GET", f"{self._path('pods', pod)}/log", operation, query))
        if status in (400, 404):
            return ""
        self._connection.expect_success(status, body, operation)
        return body.decode(errors="replace")

    def list_events(self, keep: Callable[[Json], Json] | None = None) -> list[Json]:
        """All events of the namespace; `keep` as for `list_jobsets`."""
        return self._list("events", {}, keep)

    # -- preflight --------------------------------------------------------------------------------------------

    def denied(self, rules: Iterable[Rule]) -> list[str]:
        """Which of these rules this login lacks, as text ("create jobs.batch")."""
        missing = [rule for rule in rules if not self._is_allowed(rule)]
        for pause in self._pauses:
            if missing:
                time.sleep(pause)
                missing = [rule for rule in missing if not self._is_allowed(rule)]
        return [str(rule) for rule in missing]

    def user(self) -> str:
        """Name of this login in the cluster, for people; empty if neither the API (since 1.28) nor a refusal says."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        operation = Operation("create", "selfsubjectreviews.authentication.k8s.io", self.namespace)
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        with suppress(ElasticTPUError):
            answer = self._connection.json(Call("POST", path, operation, body=review, repeatable=True))
            return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))
        operation = Operation("list", _JOBSETS, self.namespace)
        with suppress(ElasticTPUError):  # a refusal names it
            _, body = self._connection.send(Call("GET", self._path(_JOBSETS), operation, {"limit": 1}))
            return user_in(message_of(body))
        return ""

    def has_service_account(self, name: str) -> bool | None:
        """Whether the namespace has this service account; None if this login may not look."""
        try:
            return self._get("serviceaccounts", name) is not None
        except (BadInput, RefusedForNow):
            return None

    def _is_allowed(self, rule: Rule) -> bool:
        resource, _, subresource = rule.resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": rule.verb, "group": rule.group, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
        }
        operation = Operation("create", "selfsubjectaccessreviews.authorization.k8s.io", self.namespace)
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self._connection.json(Call("POST", path, operation, body=review, repeatable=True))
        return bool(answer.get("status", {}).get("allowed"))

    # -- the four verbs ---------------------------------------------------------------------------------------

    def _create(self, resource: str, manifest: Json) -> Json:
        operation = Operation("create", resource, self.namespace, manifest["metadata"]["name"])
        query = {"fieldValidation": "Strict", "fieldManager": "elastic-tpu"}
        return _one(self._connection.json(Call("POST", self._path(resource), operation, query, manifest)), operation)

    def _get(self, resource: str, name: str) -> Json | None:
        operation = Operation("get", resource, self.namespace, name)
        try:
            return _one(self._connection.json(Call("GET", self._path(resource, name), operation)), operation)
        except NotFound:
            return None

    def _delete(self, resource: str, name: str, options: Json) -> bool:
        operation = Operation("delete", resource, self.namespace, name)
        try:
            self._connection.json(Call("DELETE", self._path(resource, name), operation, body=options))
        except NotFound:
            return False
        return True

    def _list(self, resource: str, query: Json, keep: Callable[[Json], Json] | None) -> list[Json]:
        operation = Operation("list", resource, self.namespace)
        for _ in range(_LISTINGS):
            items: list[Json] = []
            rest = ""
            try:
                while True:
                    page_query = {**query, "limit": _PAGE, **({"continue": rest} if rest else {})}
                    page = self._connection.json(Call("GET", self._path(resource), operation, page_query))
                    found = page.get("items")
                    if found is None and not str(page["kind"]).endswith("List"):
                        raise Unreachable(_not_asked_for(page, operation))
                    found = found or []
                    items += [keep(item) for item in found] if keep else found
                    rest = page.get("metadata", {}).get("continue", "")
                    if not rest:
                        return items
            except ListingExpired:
                continue
        raise Unreachable(f"the Kubernetes API did not {operation}: the listing expired {_LISTINGS} times")

    def _path(self, resource: str, name: str = "") -> str:
        plural, _, group = resource.partition(".")
        version = "v1alpha2" if group == JOBSET_GROUP else "v1"
        base = f"/apis/{group}/{version}" if group else f"/api/{version}"
        path = f"{base}/namespaces/{quote(self.namespace, safe='')}/{plural}"
        return f"{path}/{quote(name, safe='')}" if name else path


def _one(found: Json, operation: Operation) -> Json:
    """What was asked for, if it is an object: something in between may answer with another thing."""
    if found["kind"] == "Status" or str(found["kind"]).endswith("List"):
        raise Unreachable(_not_asked_for(found, operation))
    return found


def _not_asked_for(found: Json, operation: Operation) -> str:
    return f"what answered sent another thing ({found['kind']}); asked to {operation}; {ADDRESS_CURE}"


def _delete_options(uid: str | None, foreground: bool = False) -> Json:
    options: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
    options["propagationPolicy"] = "Foreground" if foreground else "Background"
    if uid:
        # A delete that is sent again must not hit a newer object of the same name.
        options["preconditions"] = {"uid": uid}
    return options
