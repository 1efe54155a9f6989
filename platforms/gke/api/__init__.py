"""The Kubernetes API as the launcher uses it: login, requests, errors, and shared looks for many runs."""
