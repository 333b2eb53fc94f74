"""Benchmarks of recmix. Run them with ``python -m benchmarks``; see ``README.md`` in this folder."""
