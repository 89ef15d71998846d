"""Root-mean-square normalisation, for the decoder. Alone it is slower than torch's own, so it is no torch operator."""
