"""Training: what is asked, the split, the loop and what it leaves behind."""
