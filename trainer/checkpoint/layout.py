"""The tree of a MaxText checkpoint: which leaves are weights, and whether layers are stacked.

MaxText has written three layouts. Pre-training keeps weights under ``params.params``, beside optimizer state, the step
and ``nnx_aux`` (random-number streams). The NNX layouts of SFT and RL are recognised in order to be refused by name: a
guess would export wrong weights without an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...runs.errors import BadInput, Problem

LeafPath = tuple[str, ...]
WEIGHTS: LeafPath = ("params", "params")


def sort_leaves(leaves: Iterable[LeafPath]) -> tuple[frozenset[LeafPath], tuple[str, ...]]:
    """The weights among a checkpoint's leaves, and the names of the leaves that are ignored.

    Random-number and quantisation state is ignored and named. The optimizer's state and the step are left out.

    Raises:
      BadInput: a layout that is not MaxText's pre-training one, or leaves of an unknown kind, by name.
    """
    leaves = frozenset(leaves)
    if not any(leaf[: len(WEIGHTS)] == WEIGHTS for leaf in leaves):
        raise BadInput(_foreign_layout(leaves))
    state = {leaf for leaf in leaves if leaf[0] in ("opt_state", "step")}
    ignored = {leaf for leaf in leaves - state if any(_is_transient(part) for part in leaf)}
    weights = frozenset(leaf for leaf in leaves - ignored if leaf[: len(WEIGHTS)] == WEIGHTS)
    unknown = sorted(".".join(leaf) for leaf in leaves - state - ignored - weights)
    if unknown:
        raise BadInput([Problem(name, None, "is neither a Qwen3 weight nor a leaf to ignore") for name in unknown])
    return weights, tuple(sorted(".".join(leaf) for leaf in ignored))


def is_scanned(weights: Iterable[LeafPath], declared: bool | None) -> bool:
    """Whether layers are stacked, from the tree; what the checkpoint declares of itself must agree.

    Raises:
      BadInput: they contradict one another, or there are no layers.
    """
    names = {leaf[3] for leaf in weights if leaf[2] == "decoder" and len(leaf) > 4 and leaf[3].startswith("layers")}
    if not names:
        raise BadInput("params.params.decoder has no layers: this is not a checkpoint of a Qwen3")
    if "layers" in names and len(names) > 1:
        raise BadInput(f"params.params.decoder holds stacked and single layers at once: {sorted(names)[:4]}")
    scanned = "layers" in names
    if declared is not None and declared != scanned:
        raise BadInput(
            f"_CHECKPOINT_METADATA says scan_layers {declared}, but the tree holds {sorted(names)[0]!r}: "
            "the checkpoint contradicts itself, take another step"
        )
    return scanned


def _is_transient(part: str) -> bool:
    return part in ("rngs", "aqt", "to_nnx__rngs") or part.endswith("_rngs")


def _foreign_layout(leaves: frozenset[LeafPath]) -> str:
    top = sorted({leaf[0] for leaf in leaves})
    if "base" in top:
        kind = "MaxText's NNX RL layout (weights under `base`)"
    elif any(leaf[-1] == "value" for leaf in leaves):
        kind = "MaxText's NNX SFT layout (a `value` below each weight)"
    elif "params" in top:
        kind = "weights directly under `params`"
    else:
        kind = "an unknown layout"
    cure = "only pre-training checkpoints (params.params) can be exported"
    return f"the checkpoint's tree begins with {top}: {kind}; {cure}"
