"""The hostile app. Standard library only: this is what is put into an image, or runs in place of an interpreter."""
