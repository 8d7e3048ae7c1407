"""Exchanges images and records: push, pull, known-good tags, export and import."""
