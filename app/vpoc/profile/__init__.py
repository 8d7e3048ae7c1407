"""The volume profile in exact integers: histograms, VPOC and value area."""
