# What prolog.sh, epilog.sh and start.sh share: the node's policy is composed of a rule for each job of Slurm's that is here, and of
# stallscope.toml.
#
# Nothing here ends in failure: a prolog that fails drains the node. What is wrong is one line on stderr, which slurmd logs.

# Slurm sets none.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022

# For another place of one of these; slurmd passes no variable of a job's on.
config=${STALLSCOPE_CONFIG:-/etc/stallscope/stallscope.toml}
partitions=${STALLSCOPE_SLURM:-/etc/stallscope/slurm}
folder=${STALLSCOPE_SLURM_RUN:-/run/stallscope-slurm}
program=${STALLSCOPE_PROGRAM:-/usr/bin/stallscope}
reload=${STALLSCOPE_RELOAD:-systemctl reload stallscope-node.service}
patience_s=10

say() {
    printf 'stallscope: %s\n' "$*" >&2
}

# Whether slurmd has started this.
is_slurms() {
    case ${SLURM_JOB_ID-} in
    '' | *[!0-9]*)
        say "SLURM_JOB_ID is no number; slurmd sets it"
        return 1
        ;;
    esac
}

# Jobs come and go at once, and one at a time composes. The lock ends with this process.
enter() {
    mkdir -p "$folder/jobs" || return 1
    exec 9>"$folder/lock" || return 1
    flock --wait "$patience_s" 9 && return 0
    say "$folder/lock is held for longer than $patience_s s; the policy stays as it is"
    return 1
}

# Whether the file $1 is understood as a policy. Where not, says what is wrong with $2, by line and key.
is_understood() {
    mistake=$(timeout "$patience_s" "$program" collect --check --config "$1" 2>&1 >/dev/null 9>&-) && return 0
    say "$2 is not taken: $(printf '%s' "$mistake" | tr '\n' ' ')"
    return 1
}

# Rules of jobs first, as the first one that matches counts. A stallscope.toml with a mistake does not keep jobs from coming and going:
# the last one without is kept.
compose() {
    if is_understood "$config" "$config"; then
        cp "$config" "$folder/last.toml" || return 1
    elif [ ! -e "$folder/last.toml" ]; then
        : >"$folder/last.toml"
    fi
    for rule in "$folder"/jobs/*.toml; do
        [ ! -e "$rule" ] || cat "$rule"
    done | cat - "$folder/last.toml" >"$folder/new.toml" || return 1
    is_understood "$folder/new.toml" "what all rules make together" || return 1
    mv "$folder/new.toml" "$folder/stallscope.toml"
}

# Has the service read it; one that does not run reads it when it starts.
put_in_force() {
    # shellcheck disable=SC2086 # A command of several words.
    timeout "$patience_s" $reload 9>&- || say "\`$reload\` failed; the policy is read when the service starts"
}
