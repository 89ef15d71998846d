"""Lower an exported graph to a program of whet's own kernels (whet.core.artefact.native), by pattern."""
