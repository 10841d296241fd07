"""What answers each verb of trainer.proto, by feature: functions, and a table `HANDLERS` of them in each module."""
