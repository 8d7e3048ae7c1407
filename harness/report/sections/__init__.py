"""The sections of a report: what the records show, and what to do next. Pure."""
