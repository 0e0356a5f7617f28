"""The operator: turns TPUTrainingJobs into JobSets and keeps them productive."""
