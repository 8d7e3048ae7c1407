"""The processes that train together on one host: how they are started, and how they exchange numbers."""
