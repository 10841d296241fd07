"""The workbench: a Qt window over the daemon. It never imports torch, gymnasium, tensorboard or wandb.

`app` makes things and hands them over; `window` is a loop over tables (`actions`, `panels`); `bridge` is the only way
out of the GUI thread; `models` hold data and emit; `views` draw; `panels` put views together; `forms` ask.
"""
