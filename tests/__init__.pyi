# For mypy only: it makes tests/fakes part of the package, so that relative imports resolve (tests/fakes/__init__.py).
