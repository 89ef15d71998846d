"""Read PyTorch code and say what makes it slow, with the standard library, libcst, Jinja2 and pathspec; never torch.

`whet_audit.audit.audit` is the command `whet-audit` as a function. Importing the package imports none of the rules, so
that the command's help starts at once.
"""

__version__ = "0.1.0"
