"""Gets into other people's scripts and gives them frames, episodes, metrics and checkpoints, without editing them.

`inside/` is what travels: it is copied, with what it needs of the journal, fastlane and contracts, into a folder of its
own (`build`), which the script finds by PYTHONPATH (`launch`). Everything else here runs on our side.
"""
