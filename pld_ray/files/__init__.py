"""Files that are whole or absent: atomic writes, tensors, state trees, manifests, YAML."""
