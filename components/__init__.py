"""The reusable steps of a pipeline; importing this loads no third-party module."""
