"""What a kubelet fetches for a pod: its service account's token, and the secrets that its environment names."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kubernetes.client import CoreV1Api
from kubernetes.client.rest import ApiException
from urllib3.exceptions import HTTPError

Json = dict[str, Any]
FOLDER = "ELASTIC_TPU_SERVICE_ACCOUNT"  # read in place of `MOUNTED`
MOUNTED = "/var/run/secrets/kubernetes.io/serviceaccount"  # the API server adds this mount, unless told not to
_SECONDS = 3607  # what a kubelet asks for; it is not renewed here


def has_token(container: Json) -> bool:
    """Whether a container mounts the token of the pod's account."""
    return any(mount["mountPath"] == MOUNTED for mount in container.get("volumeMounts", []))


class Identity:
    """Who a pod is towards the API server at `url`."""

    def __init__(self, core: CoreV1Api, url: str, ca: Path) -> None:
        self._core, self._url, self._ca = core, urlsplit(url), ca

    def of(self, pod: Json, folder: Path) -> dict[str, str] | None:
        """Write the pod's service account below `folder` and return its variables; None: not to be had now."""
        meta, spec = pod["metadata"], pod["spec"]
        env = {
            "HOSTNAME": spec["nodeName"] if spec.get("hostNetwork") else spec.get("hostname", meta["name"]),
            "KUBERNETES_SERVICE_HOST": self._url.hostname or "",
            "KUBERNETES_SERVICE_PORT": str(self._url.port or 443),
        }
        if not any(
            has_token(container) for field in ("initContainers", "containers") for container in spec.get(field, [])
        ):
            return env
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        request = {"spec": {"expirationSeconds": _SECONDS, "boundObjectRef": bound}}
        account = spec.get("serviceAccountName", "default")
        try:
            answer = self._core.create_namespaced_service_account_token(
                account, meta["namespace"], request, _preload_content=False
            )
        except (ApiException, HTTPError):
            return None  # no such account, or no server: a pod waits for it
        target = folder / "serviceaccount"
        target.mkdir(exist_ok=True)
        (target / "token").write_text(json.loads(answer.data)["status"]["token"])
        (target / "ca.crt").write_bytes(self._ca.read_bytes())
        (target / "namespace").write_text(meta["namespace"])
        return {**env, FOLDER: str(target)}

    def secret(self, namespace: str, name: str, key: str) -> str | None:
        """One value of a secret; None where there is none."""
        try:
            answer = self._core.read_namespaced_secret(name, namespace, _preload_content=False)
        except (ApiException, HTTPError):
            return None
        value = json.loads(answer.data).get("data", {}).get(key)
        return None if value is None else base64.b64decode(value).decode()
