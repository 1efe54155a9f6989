"""`python -m elastic_tpu`, the same as `elastic-tpu`."""

from .cli.main import main

if __name__ == "__main__":
    main()
