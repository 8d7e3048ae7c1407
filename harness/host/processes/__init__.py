"""The processes of this host: of a run, and of others."""
