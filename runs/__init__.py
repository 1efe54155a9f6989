"""The contract of a run: what trainer, stages and people share, and the facts about hardware.

No module here has an effect except through ``store.py``.
"""
