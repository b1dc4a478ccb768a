#!/bin/sh
# Slurm's prolog on a node (slurm.conf: Prolog=), as root: gives a job what the policy of its partition allows. Goes by SLURM_JOB_ID,
# SLURM_JOB_UID, SLURM_JOB_USER and SLURM_JOB_PARTITION. docs/containers.md says how.
. "${0%/*}/policy.sh"

# The file of the job's partition: lines of a rule, without its match. None, and the job has no rule of its own.
lines_of_partition() {
    case ${SLURM_JOB_PARTITION-} in
    '' | .* | *[!A-Za-z0-9._-]*) ;;
    *)
        if [ -e "$partitions/$SLURM_JOB_PARTITION.toml" ]; then
            printf '%s\n' "$partitions/$SLURM_JOB_PARTITION.toml"
            return
        fi
        ;;
    esac
    [ ! -e "$partitions/default.toml" ] || printf '%s\n' "$partitions/default.toml"
}

# The job's user as the service names users: by login name, or by number. No name may be a pattern, or end the text that it stands in.
user() {
    case ${SLURM_JOB_USER-} in
    '' | *[\'\*\?]* | *[[:cntrl:]]*) printf '%s\n' "${SLURM_JOB_UID-}" ;;
    *) printf '%s\n' "$SLURM_JOB_USER" ;;
    esac
}

give() {
    is_slurms || return
    lines=$(lines_of_partition)
    [ -n "$lines" ] || return
    # It would end the rule, and what follows be the node's.
    if grep -q '^[[:space:]]*\[' "$lines"; then
        say "$lines is not taken: it has lines of one rule, and no heading in brackets"
        return
    fi
    enter || return
    {
        printf '# Job %s: %s\n[[jobs.rule]]\n' "$SLURM_JOB_ID" "$lines"
        printf "match = { user = '%s', cgroup = '*/job_%s/*' }\n" "$(user)" "$SLURM_JOB_ID"
        cat "$lines"
        printf '\n'
    } >"$folder/rule.toml"
    is_understood "$folder/rule.toml" "the rule of $lines" || return
    rule=$folder/jobs/$SLURM_JOB_ID.toml
    mv "$folder/rule.toml" "$rule" || return
    # One that keeps the whole from being understood would keep other jobs from theirs.
    compose || {
        rm -f "$rule"
        return
    }
    put_in_force
}

give
exit 0
