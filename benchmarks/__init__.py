"""Measurements, one script a claim; each prints JSON with `--json`."""
