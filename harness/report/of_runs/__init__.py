"""The details of single runs in a report: phases, curves, kernel events, and how to repeat the run."""
