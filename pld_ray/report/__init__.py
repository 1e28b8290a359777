"""One self-contained HTML page, pictures and tables from the runs of an MLflow store."""
