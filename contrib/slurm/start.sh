#!/bin/sh
# Before the node's service starts (stallscope-node.conf): composes the policy of the jobs that are here.
. "${0%/*}/policy.sh"
enter && compose
# A service without a policy does not start, and says why.
exit 0
