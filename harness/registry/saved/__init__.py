"""Images in a folder, such as on a USB stick, in the format of an OCI image layout."""
