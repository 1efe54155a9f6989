"""The Kubernetes API as we use it: login, calls, errors, and one look an interval for many runs."""
