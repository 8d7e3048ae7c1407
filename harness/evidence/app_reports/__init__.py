"""The app's own account of its run, and whether it adds up."""
