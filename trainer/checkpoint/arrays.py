"""The arrays of a MaxText checkpoint, opened with tensorstore.

MaxText writes ``<run>/checkpoints/<step>/items`` in two formats: OCDBT + zarr v3 by default, and one zarr v2 folder an
array under a single controller, which is what an elastic run uses. ``items/_METADATA`` says which, and names the
leaves of the tree. Neither JAX, Orbax nor MaxText is needed to read them, on a folder or on ``gs://``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorstore as ts
from etils import epath

from ...runs.errors import BadInput, ElasticTPUError, NotFound, Unreachable
from .layout import LeafPath

ITEM = "items"
# tensorstore's errors begin with an absl status code. The first ones mean that what is stored is damaged, the others
# that the storage did not answer or did not let us in.
_DAMAGE = re.compile(r"^\s*(NOT_FOUND|DATA_LOSS|FAILED_PRECONDITION|INVALID_ARGUMENT|OUT_OF_RANGE)\b")
_TRANSIENT = re.compile(
    r"^\s*(UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|CANCELLED|INTERNAL|UNKNOWN"
    r"|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)


@dataclass(frozen=True)
class CheckpointTree:
    """What a checkpoint holds and in which format; `scan_layers` is None where the checkpoint does not say."""

    folder: str
    step: int
    leaves: frozenset[LeafPath]
    ocdbt: bool
    zarr3: bool
    scan_layers: bool | None


def read_tree(step_dir: str) -> CheckpointTree:
    """The tree of the checkpoint in `step_dir` (``<run>/checkpoints/<step>``, a folder or ``gs://``).

    Raises:
      NotFound: there is no checkpoint of MaxText's pre-training there.
      BadInput: its metadata is damaged.
      Unreachable: the storage did not answer.
    """
    folder = epath.Path(step_dir)
    if (folder / "config.json").exists():
        raise BadInput(f"{step_dir}: this is a Hugging Face export already; give the checkpoint it was made from")
    if not folder.name.isdigit():
        raise BadInput(f"{step_dir}: a checkpoint's folder is named for its step, e.g. .../checkpoints/1200")
    metadata = read_json(folder / ITEM / "_METADATA")
    if metadata is None:
        inside = names_in(folder)
        hint = (
            "; MaxText's SFT and RL checkpoints (model_params) cannot be exported" if "model_params" in inside else ""
        )
        raise NotFound(f"{step_dir}: no {ITEM}/_METADATA, found {inside or 'nothing'}{hint}")
    try:
        leaves = frozenset(
            tuple(str(key["key"]) for key in leaf["key_metadata"])
            for leaf in metadata["tree_metadata"].values()
            if not leaf["value_metadata"].get("skip_deserialize") and leaf["value_metadata"]["value_type"] != "string"
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{folder / ITEM / '_METADATA'}: no tree_metadata as Orbax writes it ({error!r})") from error
    top = folder / "_CHECKPOINT_METADATA"
    custom = (read_json(top) or {}).get("custom_metadata") or {}
    scan = custom.get("scan_layers")
    return CheckpointTree(
        folder=step_dir.rstrip("/"),
        step=int(folder.name),
        leaves=leaves,
        ocdbt=bool(metadata.get("use_ocdbt", True)),
        zarr3=bool(metadata.get("use_zarr3", False)),
        scan_layers=None if scan is None else bool(scan),
    )


def open_arrays(tree: CheckpointTree, paths: Iterable[LeafPath]) -> dict[LeafPath, Any]:
    """Open arrays of the checkpoint, all at once; a tensorstore each. A missing chunk is an error, never zeros.

    Raises:
      BadInput: an array that the metadata names cannot be opened.
      Unreachable: the storage did not answer.
    """
    # No cache: each chunk is read once. OCDBT shares its own small one through the context.
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    opening = {path: ts.open(_spec(tree, path), read=True, context=context) for path in paths}
    opened = {}
    for path, future in opening.items():
        try:
            opened[path] = future.result()
        except Exception as error:
            raise read_error(tree, path, error) from error
    return opened


def _spec(tree: CheckpointTree, path: LeafPath) -> dict[str, Any]:
    name = ".".join(path)
    kvstore = kvstore_spec(f"{tree.folder}/{ITEM}/")
    if tree.ocdbt:
        kvstore = {"driver": "ocdbt", "base": kvstore, "path": f"{name}/"}
    else:
        kvstore = {**kvstore, "path": f"{kvstore['path']}{name}/"}
    return {"driver": "zarr3" if tree.zarr3 else "zarr", "kvstore": kvstore, "fill_missing_data_reads": False}


def kvstore_spec(folder: str) -> dict[str, Any]:
    """tensorstore's name for a folder or a ``gs://`` prefix, which ends with a slash."""
    if folder.startswith("gs://"):
        bucket, _, path = folder.removeprefix("gs://").partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": path}
    return {"driver": "file", "path": f"{Path(folder).absolute()}/"}


def read_json(path: epath.Path) -> Mapping[str, Any] | None:
    """A JSON object, or None when there is no such file.

    Raises:
      BadInput: the file was read, and is damaged.
      Unreachable: it could not be read.
    """
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise BadInput(f"{path}: is not text ({error}); the checkpoint is damaged, take another step") from error
    except Exception as error:  # OSError on a folder; on gs:// gcsfs and aiohttp have classes of their own
        raise Unreachable(f"{path}: cannot be read now: {error!r}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path}: is not JSON ({error}); the checkpoint is damaged, take another step") from error
    if not isinstance(value, dict):
        raise BadInput(f"{path}: a JSON object was expected; the checkpoint is damaged, take another step")
    return value


def names_in(folder: epath.Path) -> list[str]:
    """Names of what is in a folder, sorted; none when it is not there. Raises Unreachable."""
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except Exception as error:
        raise Unreachable(f"{folder}: cannot be listed now: {error!r}") from error


def is_transient(text: str) -> bool:
    """Whether an error's text is tensorstore's for a storage that did not answer or did not let us in."""
    return bool(_TRANSIENT.match(text))


def read_error(tree: CheckpointTree, path: LeafPath, error: Exception) -> ElasticTPUError:
    """tensorstore's error as ours: BadInput for a damaged checkpoint, else Unreachable."""
    text = f"{tree.folder}: array {'.'.join(path)} cannot be read: {error}"
    if _DAMAGE.match(str(error)):
        return BadInput(f"{text}; the checkpoint is damaged, take another step")
    return Unreachable(text)
