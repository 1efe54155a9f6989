"""What the container of a compiled pipeline's step gets: CPU and memory, variables, secrets and volumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..runs import masking
from ..runs.errors import BadInput, Problem

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OBJECT = r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?"  # a name in Kubernetes
_CPU = re.compile(r"\d*\.?\d+m?")
_MEMORY = re.compile(r"\d+(?:E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)?")

# Options that may be repeated: how their text is taken apart, and how it is written.
_FORMS = {
    "--env": (re.compile(rf"({_NAME})=(.*)", re.DOTALL), "NAME=VALUE"),
    "--secret-env": (re.compile(rf"({_NAME})=({_OBJECT}):([\w.-]+)"), "NAME=SECRET:KEY"),
    "--secret": (re.compile(rf"({_OBJECT})=(/.*)"), "SECRET=/PATH"),
    "--volume": (re.compile(rf"({_OBJECT})=(/.*)"), "CLAIM=/PATH"),
}


@dataclass(frozen=True)
class StepSettings:
    """Of every step alike. There are no limits: a step that is killed for its memory does nothing in order.

    Attributes:
      cpu, memory: requests, in Kubernetes' units. Without any a pod is the first that a full node evicts.
      env: (name, value) of environment variables.
      secret_env: (variable, secret, key).
      secrets: (secret, path): its keys as files.
      volumes: (persistent volume claim, path).
    """

    cpu: str = "100m"
    memory: str = "512Mi"
    env: tuple[tuple[str, ...], ...] = ()
    secret_env: tuple[tuple[str, ...], ...] = ()
    secrets: tuple[tuple[str, ...], ...] = ()
    volumes: tuple[tuple[str, ...], ...] = ()

    @property
    def of_kubernetes(self) -> bool:
        """Whether they make a second document, which only Kubeflow Pipelines reads."""
        return bool(self.secret_env or self.secrets or self.volumes)

    def apply(self, task: Any) -> None:
        """Give them to a `dsl.PipelineTask`."""
        task.set_cpu_request(self.cpu).set_memory_request(self.memory)
        for name, value in self.env:
            task.set_env_variable(name, value)
        if self.of_kubernetes:
            from kfp import kubernetes

            for variable, secret, key in self.secret_env:
                kubernetes.use_secret_as_env(task, secret, {key: variable})
            for secret, path in self.secrets:
                kubernetes.use_secret_as_volume(task, secret, path)
            for claim, path in self.volumes:
                kubernetes.mount_pvc(task, claim, path)


def parse(
    cpu: str,
    memory: str,
    env: Sequence[str] = (),
    secret_env: Sequence[str] = (),
    secrets: Sequence[str] = (),
    volumes: Sequence[str] = (),
) -> StepSettings:
    """The settings of the compile command's options, as a user wrote them.

    Raises:
      BadInput: every option that is wrong, with its cure.
    """
    wrong: list[Problem] = []
    if not _CPU.fullmatch(cpu):
        wrong.append(Problem("--cpu", cpu, "is no number of CPUs; write 0.5 or 500m"))
    if not _MEMORY.fullmatch(memory):
        wrong.append(Problem("--memory", memory, "is no size in Kubernetes' units; write 512Mi or 1Gi"))
    given = {"--env": env, "--secret-env": secret_env, "--secret": secrets, "--volume": volumes}
    found = {option: tuple(_taken_apart(option, texts, wrong)) for option, texts in given.items()}
    if wrong:
        raise BadInput(wrong)
    return StepSettings(cpu, memory, *found.values())


def refused_by_vertex(settings: StepSettings) -> list[Problem]:
    """The options that Vertex AI Pipelines cannot carry out."""
    cure = "Vertex AI has no Kubernetes Secrets and volumes; let the service account read Secret Manager or a bucket"
    texts = {
        "--secret-env": [f"{variable}={secret}:{key}" for variable, secret, key in settings.secret_env],
        "--secret": ["=".join(one) for one in settings.secrets],
        "--volume": ["=".join(one) for one in settings.volumes],
    }
    return [Problem(option, text, cure) for option, found in texts.items() for text in found]


def _taken_apart(option: str, texts: Iterable[str], wrong: list[Problem]) -> Iterable[tuple[str, ...]]:
    form, example = _FORMS[option]
    for text in texts:
        match = form.fullmatch(text)
        if match is None:
            wrong.append(Problem(option, text, f"write {example}"))
        elif option == "--env" and masking.looks_secret(*match.groups()):
            cure = "a document is no place for a credential; give it by --secret-env NAME=SECRET:KEY"
            wrong.append(Problem(option, match[1], cure))
        else:
            yield match.groups()
