"""Commands of `pld-ray`, each a module with `run`, `HELP` and `USAGE`, imported on demand."""
