"""Files that other processes read while they are written, and files of programs that are not trusted."""
