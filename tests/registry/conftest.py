from stores import mlflow_server, store  # noqa: F401
