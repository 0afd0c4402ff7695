# shellcheck shell=bash
# What all job scripts share: set-up of the site, signals, resuming and requeueing. Sourced from the folder above its
# own: a clone's root, or where `hpcgnn jobs` was told to write; runs/ is there.
#
#   train_recipe NAME ARGS...                      trains as the recipe says (train_tgn.yaml beside this file, or
#                                                  recipes/NAME.yaml); ARGS override it
#   load_site                                      reads sites/<site>.sh beside this file
#   run_with_requeue DIR PROGRAM... -- ARGS...     runs PROGRAM under the site's launcher
#
# PROGRAM is started with `--output.dir DIR ARGS...`, or with `--resume DIR ARGS...` when DIR holds a checkpoint, or the
# lock of a job that was killed or still runs: PROGRAM finds out which, and refuses in the latter case. What files of
# values said (`--config`, `--recipe`) when the run began still holds then, so these are left out, and in a job that is
# started again all ARGS are. PROGRAM answers
# SIGUSR1 with a checkpoint and exit code 75, which asks to be started again. At its end it leaves the file DIR/finished
# and exit code 0: Open MPI's mpirun ends with 0 as well when it has lost a node.
#
# In a job array every element trains with its index as seed, into a folder of its own. HPCGNN_RUN names that folder
# where it should not have the job's id: a later job with the same name goes on with the run. So does one with the same
# `--output.dir` among its arguments, which names the whole folder.
#
# With HPCGNN_IMAGE every rank runs in a container of that image, which jobs/container/hpcgnn.def makes.
#
# A file environment.sh beside this one, which `hpcgnn jobs` writes, is the environment of the jobs: it changes PATH, and
# may set PYTHON where its Python is not called `python`. Without it .venv is used when there is one, else PATH as it is.
#
# A site profile may set:
#   LAUNCH            array: the launcher with its options, to which the program is appended
#   REQUEUE           scontrol | array | repeat | none: see start_again
#   MAX_RESTARTS      how often a job may be started again
#   MAX_STALLED       how many starts in a row may end without a new checkpoint
#   RETRY_SECONDS     how long to wait before a command of Slurm that failed is tried again
#   JOB_ID            the job's id, the same in all elements of a job array
#   ARRAY_INDEX       which element of a job array this is; empty: none
#   HPCGNN_JOB_END    exported, seconds since 1970: when the job's time ends, where Slurm does not tell
# and define another interrupt_ranks.

readonly EXIT_USAGE=2 EXIT_REQUEUE=75 DIED_OF_USR1=138
JOBS=$(dirname "${BASH_SOURCE[0]}") # the folder of this file
readonly JOBS

PYTHON=python
LAUNCH=()
REQUEUE=scontrol
MAX_RESTARTS=100
MAX_STALLED=3
RETRY_SECONDS=5
RESTARTS=${SLURM_RESTART_COUNT:-0}
JOB_ID=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-}}
ARRAY_INDEX=${SLURM_ARRAY_TASK_ID:-}
RUN_ID=
OUTPUT=
ARGUMENTS=()
LAUNCHER_PID=
INTERRUPTED=no
ASKED=no # whether any interrupt came
OUTCOME= # of the last start: whether it left a checkpoint

say() {
    echo "[$(date +%H:%M:%S)] $*"
}

# The profile that the environment of a batch system's job stands for.
site_of_job() {
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        echo generic
    elif [[ -n ${PBS_JOBID:-} ]]; then
        echo pbs
    elif [[ -n ${FLUX_URI:-} ]]; then
        echo flux
    else
        echo workstation
    fi
}

# The profile named by HPCGNN_SITE; without it, what the batch system asks for.
load_site() {
    local site
    site=${HPCGNN_SITE:-$(site_of_job)}
    if [[ ! -e $JOBS/sites/$site.sh ]]; then
        say "no profile $JOBS/sites/$site.sh; there are: $(cd "$JOBS/sites" && echo *.sh)" >&2
        exit 2
    fi
    # shellcheck source=/dev/null
    source "$JOBS/sites/$site.sh"
    if [[ -n ${HPCGNN_IMAGE:-} ]]; then
        PYTHON=python # the image's
        LAUNCH+=(apptainer exec "$HPCGNN_IMAGE")
    fi
    RUN_ID=${HPCGNN_RUN:-${JOB_ID:-$(date +%Y%m%d-%H%M%S)}}
    export SLURM_EXPORT_ENV=ALL # a job submitted with --export=NONE would keep this script's environment from its ranks
    report "$site"
}

# The environment that was written down for the jobs; failing that the repository's, when there is one.
activate_venv() {
    if [[ -e $JOBS/environment.sh ]]; then
        # shellcheck source=/dev/null
        source "$JOBS/environment.sh"
    elif [[ -e .venv/bin/activate ]]; then
        # shellcheck source=/dev/null
        source .venv/bin/activate
    fi
}

# Appends to LAUNCH options that only Open MPI's mpirun has, where that is the one, and root's leave to use it.
open_mpi_options() {
    if [[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]]; then
        LAUNCH+=("$@")
        [[ $(id -u) != 0 ]] || LAUNCH+=(--allow-run-as-root)
    fi
}

# Prints a prefix for mpirun that keeps SIGTERM and SIGINT from it. It would answer them by killing the ranks at once;
# the job script hears them as well and forwards SIGUSR1. (Empty where env is older than coreutils 8.31.)
shield() {
    if env --block-signal=TERM,INT true 2>/dev/null; then
        echo "env --block-signal=TERM,INT"
    fi
}

report() {
    local cpus
    cpus=$(awk '/Cpus_allowed_list/ {print $2}' /proc/self/status)
    say "site $1, job ${SLURM_JOB_ID:-${JOB_ID:-none}}, restart $RESTARTS, nodes ${SLURM_JOB_NODELIST:-$(hostname)}," \
        "tasks per node ${SLURM_TASKS_PER_NODE:-any}, cpus per task ${SLURM_CPUS_PER_TASK:-any}, affinity $cpus"
}

# Whether this is one of several runs, which differ in the seed; else all elements of an array go on with one run.
trains_by_seed() {
    [[ -n $ARRAY_INDEX && $REQUEUE != array ]]
}

has_checkpoint() {
    compgen -G "$1/checkpoints/*/manifest.json" >/dev/null
}

newest_checkpoint() {
    compgen -G "$1/checkpoints/*/manifest.json" | sort | tail -n 1
}

# Counts, in a file beside the run, the starts in a row that left no checkpoint newer than $2, the newest one before. A
# job whose time is shorter than what it does between two checkpoints would otherwise be queued again and again. Sets
# OUTCOME.
count_stalled() {
    local newest count=0
    newest=$(newest_checkpoint "$1" || true)
    OUTCOME=checkpointed
    if [[ -n $newest && $newest != "$2" ]]; then
        rm -f "$1.stalled"
        return 0
    fi
    OUTCOME="no new checkpoint"
    if [[ -e $1.stalled ]]; then
        count=$(<"$1.stalled")
    fi
    count=$((count + 1))
    mkdir -p "$(dirname "$1")"
    echo "$count" >"$1.stalled"
    if ((count >= MAX_STALLED)); then
        rm -f "$1.stalled"
        say "no new checkpoint in $count starts: giving up; ask for more time, or checkpoint more often" >&2
        cancel_rest_of_array
        exit "$EXIT_REQUEUE"
    fi
}

# Whether a job holds the folder, or was killed while it did.
is_locked() {
    [[ -e $1/lock.json ]]
}

# The launchers hand SIGUSR1 on to all ranks: srun, and mpirun of Open MPI and MPICH, mpiexec.hydra of Intel MPI.
interrupt_ranks() {
    # shellcheck disable=SC2046
    kill -USR1 $(launchers "$LAUNCHER_PID")
}

# The launcher's process: $1, or what it runs where it is a shell script. Intel MPI's mpirun is one, which a signal would
# end without a word to its ranks.
launchers() {
    local children child
    if [[ $(readlink "/proc/$1/exe") == */*sh ]] && children=$(pgrep -P "$1"); then
        for child in $children; do
            launchers "$child"
        done
    else
        echo "$1"
    fi
}

forward_interrupt() {
    INTERRUPTED=yes
    ASKED=yes
    say "interrupted by SIG$1: asking the ranks for a checkpoint"
    if [[ -n $LAUNCHER_PID ]]; then
        interrupt_ranks 2>/dev/null || true
    fi
}

# The exit code of the launcher. A trap ends `wait` early, so wait again after each.
wait_for_launcher() {
    local code
    while true; do
        INTERRUPTED=no
        code=0
        wait "$LAUNCHER_PID" || code=$?
        [[ $INTERRUPTED == yes ]] || return "$code"
    done
}

# In the background, as a shell runs no trap while it waits for a foreground command.
launch() {
    say "starting: ${LAUNCH[*]} $*"
    bash "$JOBS/clean_start.sh" "${LAUNCH[@]}" "$@" &
    LAUNCHER_PID=$!
    wait_for_launcher
}

# A start that ended before its first checkpoint, as by the loss of a node, left nothing to go on from. Its folder is
# kept under another name, as the program refuses one that holds a run.
put_aside() {
    if [[ -e $1 ]]; then
        local kept
        kept=$1.lost-$(date +%Y%m%d-%H%M%S)
        say "$1 has no checkpoint: kept as $kept, starting anew"
        mv "$1" "$kept"
    fi
}

# Starts the program once, on the newest checkpoint when there is one.
run_once() {
    local dir=$1 program=()
    shift
    while [[ $1 != -- ]]; do
        program+=("$1")
        shift
    done
    shift
    rm -f "$dir/finished"
    if has_checkpoint "$dir" || { is_locked "$dir" && [[ -e $dir/config.yaml ]]; }; then
        ((RESTARTS == 0)) || set -- # the same job: the run has its arguments, and may be where one of them is of no use
        without_files "$@"
        launch "${program[@]}" --resume "$dir" "${ARGUMENTS[@]}"
    else
        is_locked "$dir" || put_aside "$dir"
        launch "${program[@]}" --output.dir "$dir" "$@"
    fi
}

# What Slurm calls this job: one element of an array has the id of all.
slurm_name() {
    if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        echo "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    else
        echo "$SLURM_JOB_ID"
    fi
}

# Runs a command of Slurm, several times where it fails: a busy slurmctld does not answer.
insist() {
    local try
    for try in 1 2 3 4 5; do
        if "$@"; then
            return 0
        fi
        ((try == 5)) || sleep "$RETRY_SECONDS"
    done
    say "Slurm does not answer: $*" >&2
    return 1
}

# A job that its owner cancelled must stay so, although its ranks answered the signal with "requeue me". Slurm calls it
# COMPLETING from then on, as it does a job that it preempted at once and queues again by itself. Every component of a
# heterogeneous job has a line.
is_running() {
    [[ $(insist squeue --noheader --jobs="$(slurm_name)" --format=%T | sort -u) == RUNNING ]]
}

is_last_of_array() {
    [[ ${SLURM_ARRAY_TASK_ID:-} == "${SLURM_ARRAY_TASK_MAX:-}" ]]
}

# Arranges that an interrupted job goes on; succeeds when the caller should start the program again itself.
#   scontrol   puts this job back into the queue
#   array      for sites that forbid that: submit with --array=1-N%1, and the next element goes on
#   repeat     starts it again here and now
#   none       leaves it to the user
start_again() {
    if [[ $REQUEUE == none ]]; then
        say "$OUTCOME; started with HPCGNN_RUN=$RUN_ID, the script goes on with the run"
        exit "$EXIT_REQUEUE"
    elif ((RESTARTS >= MAX_RESTARTS)); then
        say "$OUTCOME, but started again $RESTARTS times already (MAX_RESTARTS=$MAX_RESTARTS): giving up" >&2
        cancel_rest_of_array
        exit "$EXIT_REQUEUE"
    elif [[ $REQUEUE == repeat ]]; then
        RESTARTS=$((RESTARTS + 1))
        return 0
    elif ! is_running; then
        say "$OUTCOME; the job was cancelled or Slurm requeues it, so it is left alone"
        exit "$EXIT_REQUEUE"
    elif [[ $REQUEUE == array ]] && is_last_of_array; then
        say "$OUTCOME, but the job array has no further element; submitted with HPCGNN_RUN=$RUN_ID, it goes on" >&2
        exit "$EXIT_REQUEUE"
    elif [[ $REQUEUE == array ]]; then
        say "$OUTCOME; the next element of the job array goes on"
        exit 0
    fi
    say "$OUTCOME; requeueing job $(slurm_name)"
    trap '' TERM # requeueing ends this script
    insist scontrol requeue "$(slurm_name)" || say "not requeued; start it again with HPCGNN_RUN=$RUN_ID" >&2
    exit "$EXIT_REQUEUE"
}

# Elements of a job array that wait for a run which is done, or will not get further.
cancel_rest_of_array() {
    if [[ $REQUEUE == array && -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
        scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
    fi
}

# Ends the job script, with the program's exit code.
run_with_requeue() {
    local code before
    trap 'forward_interrupt USR1' USR1
    trap 'forward_interrupt TERM' TERM
    trap 'forward_interrupt INT' INT
    while true; do
        code=0
        before=$(newest_checkpoint "$1" || true)
        run_once "$@" || code=$?
        if [[ $code == 0 && ! -e $1/finished ]]; then
            say "the launcher ended with 0, but the run is not at its end: was a node lost?" >&2
            code=1
        elif [[ $ASKED == yes && $code == "$DIED_OF_USR1" ]]; then
            say "interrupted before it could answer"
            code=$EXIT_REQUEUE
        fi
        say "finished with exit code $code"
        [[ $code == "$EXIT_REQUEUE" ]] || break
        count_stalled "$1" "$before"
        start_again
    done
    rm -f "$1.stalled"
    [[ $code != 0 && $code != "$EXIT_USAGE" ]] || cancel_rest_of_array
    exit "$code"
}

# The yaml file of a recipe; ends the job script where there is none.
recipe_file() {
    local file=$JOBS/recipes/$1.yaml
    [[ $1 != tgn ]] || file=$JOBS/train_tgn.yaml
    if [[ -z $1 || ! -e $file ]]; then
        say "no recipe '$1'; recipes are: tgn $(cd "$JOBS/recipes" && printf '%s ' *.yaml | sed 's/\.yaml//g')" >&2
        exit 2
    fi
    echo "$file"
}

# Sets OUTPUT to the folder that arguments ask for, if they do, and ARGUMENTS to the others.
take_output() {
    OUTPUT=
    ARGUMENTS=()
    while (($#)); do
        case $1 in
            --output.dir)
                OUTPUT=${2:-}
                shift "$(($# > 1))"
                ;;
            --output.dir=*) OUTPUT=${1#*=} ;;
            --resume | --resume=*)
                say "a job script goes on by itself with the run that --output.dir, or HPCGNN_RUN, names:" \
                    "leave out --resume" >&2
                exit "$EXIT_USAGE"
                ;;
            *) ARGUMENTS+=("$1") ;;
        esac
        shift
    done
}

# Sets ARGUMENTS to those that do not name files of values.
without_files() {
    ARGUMENTS=()
    while (($#)); do
        case $1 in
            --config | --recipe) shift "$(($# > 1))" ;;
            --config=* | --recipe=*) ;;
            *) ARGUMENTS+=("$1") ;;
        esac
        shift
    done
}

train_recipe() {
    local name=${1:-} file folder keys
    file=$(recipe_file "$name")
    shift
    take_output "$@"
    load_site
    folder=${OUTPUT:-runs/$name-$RUN_ID}
    keys=(--config "$file")
    if trains_by_seed; then
        folder+=-seed-$ARRAY_INDEX
        keys+=(--train.seed "$ARRAY_INDEX")
    fi
    run_with_requeue "$folder" "$PYTHON" -m hpcgnn.train -- "${keys[@]}" "${ARGUMENTS[@]}"
}
