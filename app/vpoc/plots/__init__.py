"""Pictures of sessions with their volume profiles."""
