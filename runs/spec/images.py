"""Checks of container image references: an image must be the same on the tenth day of a run as on the first.

`latest` and a missing tag are refused: they name whatever was pushed last, so a slice that comes back later would run
other code than the others. Pathways images must match the trainer's JAX, which their tags name.
"""

from __future__ import annotations

import re

TRAINER_JAX = "0.12.0"
"""The JAX of the trainer (requirements.lock, to its third number), as Pathways' tags write it."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PATHWAYS_TAG = re.compile(r"([0-9]{8})-jax_([0-9]+(?:\.[0-9]+)+)")
_REPOSITORY = re.compile(r"[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+|[a-z0-9]+([._-]+[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}")


def split(image: str) -> tuple[str, str, str]:
    """Repository, tag and digest of a reference; missing parts are empty."""
    name, _, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{folder}{slash}{last}", tag, digest


def image_problem(image: str) -> str:
    """What is wrong with an image reference, with the cure; empty when nothing is."""
    repository, tag, digest = split(image)
    if tag == "latest":
        return "`latest` may name another image tomorrow; give a tag that stays, or a digest"
    if digest and not _DIGEST.fullmatch(digest):
        return "its digest must be @sha256: and 64 hex digits"
    if not _REPOSITORY.fullmatch(repository) or (tag and not _TAG.fullmatch(tag)):
        return "must be an image reference, e.g. us-docker.pkg.dev/acme/train/elastic-tpu:0.1.0"
    return "" if tag or digest else "has no tag, which means `latest`; add one (:0.1.0), or a digest (@sha256:...)"


def pathways_tag_problem(tag: str) -> str:
    """What is wrong with a Pathways tag, with the cure; empty when it is for the trainer's JAX."""
    match = _PATHWAYS_TAG.fullmatch(tag)
    if match is None:
        return f"must be a release that names its JAX: <yyyymmdd>-jax_{TRAINER_JAX}"
    if match[2] != TRAINER_JAX:
        return f"is for JAX {match[2]}, the trainer has {TRAINER_JAX}; take a tag that ends in -jax_{TRAINER_JAX}"
    return ""


def pathways_repository_problem(image: str) -> str:
    """What is wrong with the repository of a Pathways image, with the cure; empty when nothing is."""
    repository, tag, _ = split(image)
    if tag:
        return f"server and proxy share one tag: write {repository!r} here and {tag!r} in gke.pathways.tag"
    return image_problem(f"{image}@sha256:{'0' * 64}" if "@" not in image else image)


def pathways_image(repository: str, tag: str) -> str:
    """The reference to run. A digest wins over the tag, which then only says which JAX the image has."""
    return repository if "@" in repository else f"{repository}:{tag}"
