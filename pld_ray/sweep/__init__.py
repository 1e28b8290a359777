"""Sweeps: many training runs from one file, on Ray Tune."""
