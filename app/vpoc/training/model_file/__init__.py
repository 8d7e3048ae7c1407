"""The model file, and predictions of the model on new data."""
