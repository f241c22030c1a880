"""Control documents (compare-and-swap), the workspace, and configuration read from YAML."""
