"""How each edit of a fix changes the syntax tree; `whet_audit.fixing` puts them together. Imports libcst."""
