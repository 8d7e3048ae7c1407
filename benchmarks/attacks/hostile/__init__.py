"""The hostile app, which is copied into an image or runs in place of an interpreter; standard library only."""
