"""The steps as KFP components.

from elastic_tpu.components.kfp import provision_slices, release_slices, train_elastic
"""

from .evaluate_checkpoint.component import evaluate_checkpoint
from .export_checkpoint.component import export_checkpoint
from .provision_slices.component import provision_slices
from .release_slices.component import release_slices
from .train_elastic.component import train_elastic

__all__ = ["evaluate_checkpoint", "export_checkpoint", "provision_slices", "release_slices", "train_elastic"]
