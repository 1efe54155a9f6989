"""Simulated slices: real processes of this machine under one supervisor (docs/contracts.md 11).

In the launcher:
  platform            what every platform offers (`platforms/base.py`)
  supervisors         asks supervisors, starts them, finds their processes
  control             one request to a supervisor, and its answer
  folder              locks of the runtime folder, and its removal
In the supervisor, one for the slices and one for each CPU job:
  supervisor_process  entry point: lock, socket, signals
  supervisor          answers requests, runs workers and job, ends itself when nobody drives the run
  workers             starts and restarts the workers of the slices
  job                 starts, stops and relaunches the trainer, or a CPU job
  unclaimed           counts for how long nobody has driven the run
  relaunch            decides whether a process that ended is started again
  faults              carries out rehearsed slice losses
  unclaimed           counts for how long nobody has driven the run
  processes           children that die with their parent
In a process of its own:
  worker              stands in for the Pathways workers of a slice
In the trainer:
  slices              which slices are alive, and which were lost
"""
