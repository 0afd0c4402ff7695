# shellcheck shell=bash disable=SC2034
# Flux, a rank on each core of the job or HPCGNN_RANKS in all:
#
#   flux batch -N 2 -n 4 -t 60m jobs/train_tgn.slurm --data.path parts/
#
# Before the time ends the run leaves with a checkpoint. Chain jobs of one HPCGNN_RUN to go on from there:
#
#   flux batch --env=HPCGNN_RUN=wiki --dependency=afterany:JOB ...
activate_venv

REQUEUE=${HPCGNN_REQUEUE:-none}
JOB_ID=$(flux getattr jobid)
JOB_ID=${JOB_ID/#ƒ/f}

left=$(flux job timeleft 2>/dev/null) || true
if [[ $left =~ ^[0-9]+ ]]; then
    export HPCGNN_JOB_END=$(($(date +%s) + BASH_REMATCH[0]))
fi

LAUNCH=(flux run --ntasks="${HPCGNN_RANKS:-$(flux resource list --states=up --no-header --format='{ncores}')}")
if [[ $(mpirun --version 2>/dev/null) == *"Open MPI"* ]]; then
    LAUNCH+=(--setopt=pmi=pmix) # by the plugin flux-pmix
fi

# The ranks are a job within this one, the newest.
interrupt_ranks() {
    flux job kill --signal=USR1 "$(flux job last)"
}
