"""Fakes of the package's protocols, one module a protocol; mypy checks each against it, as strictly as the package.

They import relatively, unlike the tests: mypy does not follow the editable install, so to it the package has the name
of the checkout's folder. `tests/__init__.pyi` is there for mypy only, which finds the package through it.
"""
