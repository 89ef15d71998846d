"""How each edit of a fix changes the syntax tree; `whet.auditor.fixing` puts them together. Imports libcst."""
