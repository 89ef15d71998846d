"""Turn JSON schemas into grammars that allow nothing but valid JSON."""
