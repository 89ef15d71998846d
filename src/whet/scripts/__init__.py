"""Watch and change programs from outside: training scripts, any command as it runs, fixes that the auditor proposes."""
