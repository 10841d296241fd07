"""What travels into the script. Standard library, numpy where the script has it, Python 3.8 and up.

Nothing of it may ever raise into the script: every hook is guarded, and what fails says so once, in the journal.
"""
