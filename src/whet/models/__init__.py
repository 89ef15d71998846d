"""Reference models, one a file, written to be read: what whet's techniques are shown and tested on."""
