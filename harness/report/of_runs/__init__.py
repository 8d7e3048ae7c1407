"""The runs of a report that are shown one by one: phases, curves, kernel events, and how to repeat them."""
