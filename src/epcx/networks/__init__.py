"""Policies and critics, in three architectures with one signature."""
