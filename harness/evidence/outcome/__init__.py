"""The outcome of a run: the request, the evidence, and the objections."""
