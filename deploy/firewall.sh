#!/bin/sh
# Closes the ports of Pathways to all but the nodes of one cluster. Not verified on Google Cloud.
#
#   NETWORK=default NODES=gke-tpus-1a2b3c4d-node sh deploy/firewall.sh | sh
#
# Pathways speaks gRPC without encryption or login, and its pods are on their nodes' network, where a NetworkPolicy does
# not reach them: whoever reaches a port may run programs on the slices. GKE itself opens node ports to nodes and pods of
# the cluster only; this closes them also where a broader rule of the VPC (`default-allow-internal`) opens them.
# Prints the commands, so that they can be read first. NODES: the network tag of the cluster's nodes, from
#   gcloud compute instances list --filter="name~^gke-" --format="value(tags.items)"
set -eu
: "${NETWORK:?the VPC network of the cluster}" "${NODES:?the network tag of its nodes}"
# Resource manager and proxy of the head; workers; Megascale; libtpu; the colocated-Python sidecar.
PORTS=tcp:29000-29006,tcp:8471,tcp:8080,tcp:50051
echo "gcloud compute firewall-rules create $NODES-pathways-within --network=$NETWORK --direction=INGRESS --priority=900 \
--action=ALLOW --rules=$PORTS --source-tags=$NODES --target-tags=$NODES"
echo "gcloud compute firewall-rules create $NODES-pathways-closed --network=$NETWORK --direction=INGRESS --priority=901 \
--action=DENY --rules=$PORTS --source-ranges=0.0.0.0/0 --target-tags=$NODES"
