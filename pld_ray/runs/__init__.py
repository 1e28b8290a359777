"""A run's folder: what lies in it, who holds it, what it is doing."""
