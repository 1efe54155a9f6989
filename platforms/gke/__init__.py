"""GKE: a run is a Pathways JobSet, export and evaluation are Jobs; slices exist already, or Kueue admits them.

In the launcher (pipeline step, Airflow, command line), with the kubernetes client:
  platform       what every platform offers (`platforms/base.py`): launch, observe, cancel, release, ...
  deletion       deletes objects by uid and waits until they and their pods are gone
  slices_record  slices.json and the slice events
  status/        what JobSet, Jobs, pods and events mean: state, reasons in words, stuck pods, ownership; pure
  manifests/     from spec and plan to the JobSet and the Jobs; pure
  api/           the Kubernetes API: login, requests, errors, shared looks, the rights that are needed
In the trainer's pod, with the standard library only and nothing of the above:
  slices         watches the run's slices and gets lost ones back
  pod_api        GET and DELETE of Jobs with the pod's own token
In both:
  k8s_json       reads JSON objects of the Kubernetes API
  names          names, labels and annotations of a run's objects
"""
