"""Stepping environments with base + residual; see `env_runner` and `vector_env`."""
