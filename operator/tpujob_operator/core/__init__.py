"""Pure decisions: functions of data and time, no I/O."""
