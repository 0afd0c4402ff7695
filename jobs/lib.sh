# shellcheck shell=bash
# What all job scripts share: set-up of the site, signals, launch and requeueing. Sourced from the folder above its own:
# a clone's root, or where `hpcgnn jobs` was told to write; runs/ is there. Folders, arguments and when to give up are
# decided by hpcgnn/job_runs.py.
#
#   train_recipe NAME ARGS...                      trains as the recipe says (train_tgn.yaml beside this file, or
#                                                  recipes/NAME.yaml); ARGS override it
#   load_site                                      reads sites/<site>.sh beside this file
#   run_with_requeue DIR PROGRAM... -- ARGS...     runs PROGRAM under the site's launcher
#
# PROGRAM is started with `--output.dir DIR ARGS...`, or with `--resume DIR ARGS...` when DIR holds a checkpoint, or the
# lock of a job that was killed or still runs: PROGRAM finds out which, and refuses in the latter case. PROGRAM answers
# SIGUSR1 with a checkpoint and exit code 75, which asks to be started again. At its end it leaves the file DIR/finished
# and exit code 0: Open MPI's mpirun ends with 0 as well when it has lost a machine.
#
# In a job array every element trains with its index as seed, into a folder of its own. HPCGNN_RUN names that folder
# where it should not have the job's id: a later job with the same name resumes the run. So does one with the same
# `--output.dir` among its arguments, which names the whole folder.
#
# With HPCGNN_IMAGE every rank runs in a container of that image, which jobs/container/hpcgnn.def makes. Nothing but the
# image has to hold hpcgnn then.
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
CONTAINER=() # put before a program, runs it in the image
LAUNCHER_PID=
INTERRUPTED=no
ASKED=no # whether any interrupt came
# Answers of hpcgnn/job_runs.py.
FOLDER=
ARGUMENTS=()
NEWEST=
OUTCOME=
GIVES_UP=no
NOTE=

say() {
    echo "[$(date '+%Y-%m-%d %H:%M:%S')] $*"
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
        CONTAINER=(apptainer exec "$HPCGNN_IMAGE")
        LAUNCH+=("${CONTAINER[@]}")
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
    say "site $1, job ${SLURM_JOB_ID:-${JOB_ID:-none}}, restart $RESTARTS," \
        "machines ${SLURM_JOB_NODELIST:-$(hostname)}, tasks per machine ${SLURM_TASKS_PER_NODE:-any}," \
        "cpus per task ${SLURM_CPUS_PER_TASK:-any}, affinity $cpus"
}

# Sets variables to what hpcgnn/job_runs.py decides; ends the job script where it refuses the arguments. It runs in the
# ranks' container, which has the same folders: outside of the image there may be no Python with hpcgnn. A signal to all
# processes of the job is for the ranks, and must not end it.
decide() {
    local answer
    answer=$(trap '' USR1 TERM INT && "${CONTAINER[@]}" "$PYTHON" -m hpcgnn.job_runs "$@") || exit
    NOTE=
    eval "$answer"
    [[ -z $NOTE ]] || say "$NOTE"
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
        [[ $INTERRUPTED == yes ]] || break
    done
    LAUNCHER_PID=
    return "$code"
}

# In the background, as a shell runs no trap while it waits for a foreground command.
launch() {
    say "starting: ${LAUNCH[*]} $*"
    bash "$JOBS/clean_start.sh" "${LAUNCH[@]}" "$@" &
    LAUNCHER_PID=$!
    wait_for_launcher
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
    INTERRUPTED=no
    decide start "$RESTARTS" "$dir" "$@"
    [[ $INTERRUPTED == no ]] || return "$DIED_OF_USR1" # there were no ranks yet
    launch "${program[@]}" "${ARGUMENTS[@]}"
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
    if [[ $GIVES_UP == yes ]]; then
        say "$OUTCOME" >&2
        cancel_rest_of_array
        exit "$EXIT_REQUEUE"
    elif [[ $REQUEUE == none ]]; then
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
    local code
    trap 'forward_interrupt USR1' USR1
    trap 'forward_interrupt TERM' TERM
    trap 'forward_interrupt INT' INT
    while true; do
        code=0
        run_once "$@" || code=$?
        if [[ $code == 0 && ! -e $1/finished ]]; then
            say "the launcher ended with 0, but the run is not at its end: was a machine lost?" >&2
            code=1
        elif [[ $ASKED == yes && $code == "$DIED_OF_USR1" ]]; then
            say "interrupted before it could answer"
            code=$EXIT_REQUEUE
        fi
        say "finished with exit code $code"
        [[ $code == "$EXIT_REQUEUE" ]] || break
        decide judge "$MAX_STALLED" "$NEWEST" "$1"
        start_again
    done
    rm -f "${1%/}.stalled" # the count of `decide judge`
    [[ $code != 0 && $code != "$EXIT_USAGE" ]] || cancel_rest_of_array
    exit "$code"
}

train_recipe() {
    load_site
    decide recipe "$JOBS" "$RUN_ID" "$ARRAY_INDEX" "$REQUEUE" "$@"
    run_with_requeue "$FOLDER" "$PYTHON" -m hpcgnn.train -- "${ARGUMENTS[@]}"
}
