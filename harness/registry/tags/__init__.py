"""Known-good tags: earned by rule, moved with their evidence, valid where that holds."""
