"""Training: its options, the split of the samples, the loop, and the files that it writes."""
