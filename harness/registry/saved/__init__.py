"""Images in a folder, such as on a stick: an OCI image layout."""
