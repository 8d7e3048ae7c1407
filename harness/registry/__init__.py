"""Images and records that travel: push, pull, known-good tags, export, import."""
