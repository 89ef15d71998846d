"""Hold reference models, one in each file, written to be read. whet's techniques are shown and tested on them."""
