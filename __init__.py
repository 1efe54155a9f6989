"""Elastic training on Cloud TPU slices as reusable pipeline steps."""

__version__ = "0.1.0"
