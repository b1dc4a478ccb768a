#!/bin/sh
# Slurm's epilog on a node (slurm.conf: Epilog=), as root: takes back what prolog.sh gave the job. Goes by SLURM_JOB_ID.
. "${0%/*}/policy.sh"

take() {
    is_slurms || return
    [ -e "$folder/jobs/$SLURM_JOB_ID.toml" ] || return
    enter || return
    rm -f "$folder/jobs/$SLURM_JOB_ID.toml" && compose && put_in_force
}

take
exit 0
