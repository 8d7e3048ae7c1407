"""Levels of sessions with torch on any device, along the paths on which GPU stacks were seen to fail."""
