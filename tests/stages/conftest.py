"""The fixture that makes runs and ends what they started."""

from elastic_tpu.tests.support import make_case

__all__ = ["make_case"]
