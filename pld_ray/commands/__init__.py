"""Commands of `pld-ray`, each a module with `run` and `USAGE`, imported on demand."""
