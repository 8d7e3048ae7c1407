"""Walk-forward evaluation of features and model, with baselines, placebos and intervals."""
